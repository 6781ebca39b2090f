; numba 0.68.1, llvmlite 0.50.0
; run_queues, sha256 c60ec13f9a115ef22040d348556ba5b86600f0067f9df9f7a39b2e1c9b9f6c79
define i32 @kernel(i64 %arg.num_ranks, i64 %arg.num_messages, i64 %arg.columns, ptr %arg.nbytes, ptr %arg.start_s, ptr %arg.added_s, ptr %arg.links, ptr %arg.capacity, ptr %arg.src, ptr %arg.dst, ptr %arg.waits, ptr %arg.first, ptr %arg.followers, ptr %arg.next_post, ptr %arg.free_s, ptr %arg.heap_s, ptr %arg.heap, ptr %arg.came_s, ptr %arg.finish_s) {
entry:
  %.140455.not = icmp slt i64 %arg.num_ranks, 1
  br i1 %.140455.not, label %B62, label %B34.if
B62:
  %.272458.not = icmp slt i64 %arg.num_messages, 1
  br i1 %.272458.not, label %common.ret, label %B96.if
B124:
  %.26.not.i = icmp eq i64 %size.8.0462, 0
  br i1 %.26.not.i, label %after0, label %B12.i
B12.i:
  %at.2.1.i = phi i64 [ %.35.i, %B102.i ], [ %size.8.0462, %B124 ]
  %.34.i = add nsw i64 %at.2.1.i, -1
  %.35.i = ashr i64 %.34.i, 1
  %.41.i = getelementptr double, ptr %arg.heap_s, i64 %.35.i
  %.42.i = load double, ptr %.41.i, align 8
  %.44.i = fcmp olt double %.42.i, 0.000000e+00
  br i1 %.44.i, label %after0, label %B52.i
B52.i:
  %.51.i = fcmp oeq double %.42.i, 0.000000e+00
  br i1 %.51.i, label %B76.i, label %B102.i
B76.i:
  %.55.i = getelementptr i64, ptr %arg.heap, i64 %.35.i
  %.56.i = load i64, ptr %.55.i, align 8
  %.58.i = icmp slt i64 %.56.i, %.216.0460
  br i1 %.58.i, label %after0, label %B102.i
B102.i:
  %.74.i = getelementptr double, ptr %arg.heap_s, i64 %at.2.1.i
  store double %.42.i, ptr %.74.i, align 8
  %.78.i = getelementptr i64, ptr %arg.heap, i64 %.35.i
  %.79.i = load i64, ptr %.78.i, align 8
  %.82.i = getelementptr i64, ptr %arg.heap, i64 %at.2.1.i
  store i64 %.79.i, ptr %.82.i, align 8
  %.91.not.i = icmp eq i64 %.35.i, 0
  br i1 %.91.not.i, label %after0, label %B12.i
after0:
  %at.3.0.i = phi i64 [ 0, %B124 ], [ 0, %B102.i ], [ %at.2.1.i, %B76.i ], [ %at.2.1.i, %B12.i ]
  %.103.i = getelementptr double, ptr %arg.heap_s, i64 %at.3.0.i
  store double 0.000000e+00, ptr %.103.i, align 8
  %.112.i = getelementptr i64, ptr %arg.heap, i64 %at.3.0.i
  store i64 %.216.0460, ptr %.112.i, align 8
  %.121.i = add nsw i64 %size.8.0462, 1
  br label %B162
B162:
  %size.9.1 = phi i64 [ %.121.i, %after0 ], [ %size.8.0462, %B96.if ]
  %exitcond478.not = icmp eq i64 %arg.num_messages, %.285
  br i1 %exitcond478.not, label %B164, label %B96.if
B164:
  %.376.not = icmp eq i64 %size.9.1, 0
  br i1 %.376.not, label %common.ret, label %B170.preheader
B170.preheader:
  %0 = trunc nuw i64 %arg.num_messages to i32
  %.700 = shl nuw nsw i64 %arg.num_messages, 1
  %.934 = mul nuw nsw i64 %arg.num_messages, 3
  %1 = and i64 %arg.columns, 1
  %2 = lshr i64 %arg.columns, 1
  %.1003 = add nuw nsw i64 %2, %1
  %.982.inv = icmp slt i64 %arg.columns, 1
  %.1024468.not482 = icmp eq i64 %.1003, 0
  %.1024468.not = select i1 %.982.inv, i1 true, i1 %.1024468.not482
  br label %B170
B170:
  %size.10.0 = phi i64 [ %size.11.1, %B1854 ], [ %size.9.1, %B170.preheader ]
  %.385 = load double, ptr %arg.heap_s, align 8
  %.391 = load i64, ptr %arg.heap, align 8
  %.11.i = add nsw i64 %size.10.0, -1
  %.17.i = getelementptr double, ptr %arg.heap_s, i64 %.11.i
  %.18.i = load double, ptr %.17.i, align 8
  %.24.i = getelementptr i64, ptr %arg.heap, i64 %.11.i
  %.25.i = load i64, ptr %.24.i, align 8
  %.38.i = icmp sgt i64 %size.10.0, 2
  br i1 %.38.i, label %B74.i, label %after1
B74.i:
  %at.2.1.i305 = phi i64 [ %child.2.1.i, %B298.i ], [ 0, %B170 ]
  %.46.i = shl nsw i64 %at.2.1.i305, 1
  %.47.i = or disjoint i64 %.46.i, 1
  %.56.i306 = add nsw i64 %.46.i, 2
  %.62.i = icmp slt i64 %.56.i306, %.11.i
  br i1 %.62.i, label %B112.i, label %B224.i
B112.i:
  %.68.i = getelementptr double, ptr %arg.heap_s, i64 %.56.i306
  %.69.i = load double, ptr %.68.i, align 8
  %.72.i = getelementptr double, ptr %arg.heap_s, i64 %.47.i
  %.73.i = load double, ptr %.72.i, align 8
  %.74.i308 = fcmp olt double %.69.i, %.73.i
  br i1 %.74.i308, label %B220.i, label %B148.i
B148.i:
  %.87.i = fcmp oeq double %.69.i, %.73.i
  br i1 %.87.i, label %B184.i, label %B224.i
B184.i:
  %.94.i = getelementptr i64, ptr %arg.heap, i64 %.56.i306
  %.95.i = load i64, ptr %.94.i, align 8
  %.98.i = getelementptr i64, ptr %arg.heap, i64 %.47.i
  %.99.i = load i64, ptr %.98.i, align 8
  %.102.i = icmp slt i64 %.95.i, %.99.i
  br i1 %.102.i, label %B220.i, label %B224.i
B220.i:
  br label %B224.i
B224.i:
  %child.2.1.i = phi i64 [ %.56.i306, %B220.i ], [ %.47.i, %B184.i ], [ %.47.i, %B148.i ], [ %.47.i, %B74.i ]
  %.118.i = getelementptr double, ptr %arg.heap_s, i64 %child.2.1.i
  %.119.i = load double, ptr %.118.i, align 8
  %.121.i307 = fcmp ogt double %.119.i, %.18.i
  br i1 %.121.i307, label %after1, label %B248.i
B248.i:
  %.128.i = fcmp oeq double %.119.i, %.18.i
  br i1 %.128.i, label %B272.i, label %B298.i
B272.i:
  %.132.i = getelementptr i64, ptr %arg.heap, i64 %child.2.1.i
  %.133.i = load i64, ptr %.132.i, align 8
  %.135.i = icmp sgt i64 %.133.i, %.25.i
  br i1 %.135.i, label %after1, label %B298.i
B298.i:
  %.151.i = getelementptr double, ptr %arg.heap_s, i64 %at.2.1.i305
  store double %.119.i, ptr %.151.i, align 8
  %.155.i = getelementptr i64, ptr %arg.heap, i64 %child.2.1.i
  %.156.i = load i64, ptr %.155.i, align 8
  %.159.i = getelementptr i64, ptr %arg.heap, i64 %at.2.1.i305
  store i64 %.156.i, ptr %.159.i, align 8
  %.168.i = shl nsw i64 %child.2.1.i, 1
  %.169.i = or disjoint i64 %.168.i, 1
  %.171.i = icmp slt i64 %.169.i, %.11.i
  br i1 %.171.i, label %B74.i, label %after1
after1:
  %at.3.0.i304 = phi i64 [ 0, %B170 ], [ %child.2.1.i, %B298.i ], [ %at.2.1.i305, %B272.i ], [ %at.2.1.i305, %B224.i ]
  %.183.i = getelementptr double, ptr %arg.heap_s, i64 %at.3.0.i304
  store double %.18.i, ptr %.183.i, align 8
  %.192.i = getelementptr i64, ptr %arg.heap, i64 %at.3.0.i304
  store i64 %.25.i, ptr %.192.i, align 8
  %3 = or i64 %.391, %arg.num_messages
  %4 = icmp ult i64 %3, 4294967296
  br i1 %4, label %7, label %11
B310:
  %.505 = getelementptr i64, ptr %arg.src, i64 %spec.select
  %.506 = load i64, ptr %.505, align 8
  %.508 = getelementptr double, ptr %arg.came_s, i64 %.506
  %.509 = load double, ptr %.508, align 8
  %.512 = getelementptr i64, ptr %arg.dst, i64 %spec.select
  %.513 = load i64, ptr %.512, align 8
  %.515 = getelementptr double, ptr %arg.came_s, i64 %.513
  %.516 = load double, ptr %.515, align 8
  %.16.i = fcmp ogt double %.509, %.385
  %.17.i309 = select i1 %.16.i, double %.509, double %.385
  %.18.i310 = fcmp ogt double %.516, %.17.i309
  %.19.i = select i1 %.18.i310, double %.516, double %.17.i309
  %.551 = getelementptr double, ptr %arg.start_s, i64 %spec.select
  %.552 = load double, ptr %.551, align 8
  %.553 = fadd double %.552, %.19.i
  %.556 = add nsw i64 %spec.select, %arg.num_messages
  %.26.not.i311 = icmp eq i64 %.11.i, 0
  br i1 %.26.not.i311, label %after2, label %B12.i312
B12.i312:
  %at.2.1.i313 = phi i64 [ %.35.i315, %B102.i321 ], [ %.11.i, %B310 ]
  %.34.i314 = add nsw i64 %at.2.1.i313, -1
  %.35.i315 = ashr i64 %.34.i314, 1
  %.41.i316 = getelementptr double, ptr %arg.heap_s, i64 %.35.i315
  %.42.i317 = load double, ptr %.41.i316, align 8
  %.44.i318 = fcmp olt double %.42.i317, %.553
  br i1 %.44.i318, label %after2, label %B52.i319
B52.i319:
  %.51.i320 = fcmp oeq double %.42.i317, %.553
  br i1 %.51.i320, label %B76.i331, label %B102.i321
B76.i331:
  %.55.i332 = getelementptr i64, ptr %arg.heap, i64 %.35.i315
  %.56.i333 = load i64, ptr %.55.i332, align 8
  %.58.i334 = icmp slt i64 %.56.i333, %.556
  br i1 %.58.i334, label %after2, label %B102.i321
B102.i321:
  %.74.i322 = getelementptr double, ptr %arg.heap_s, i64 %at.2.1.i313
  store double %.42.i317, ptr %.74.i322, align 8
  %.78.i323 = getelementptr i64, ptr %arg.heap, i64 %.35.i315
  %.79.i324 = load i64, ptr %.78.i323, align 8
  %.82.i325 = getelementptr i64, ptr %arg.heap, i64 %at.2.1.i313
  store i64 %.79.i324, ptr %.82.i325, align 8
  %.91.not.i326 = icmp eq i64 %.35.i315, 0
  br i1 %.91.not.i326, label %after2, label %B12.i312
after2:
  %at.3.0.i327 = phi i64 [ 0, %B310 ], [ 0, %B102.i321 ], [ %at.2.1.i313, %B76.i331 ], [ %at.2.1.i313, %B12.i312 ]
  %.103.i328 = getelementptr double, ptr %arg.heap_s, i64 %at.3.0.i327
  store double %.553, ptr %.103.i328, align 8
  %.112.i329 = getelementptr i64, ptr %arg.heap, i64 %at.3.0.i327
  store i64 %.556, ptr %.112.i329, align 8
  %.595 = getelementptr i64, ptr %arg.next_post, i64 %spec.select
  %.596 = load i64, ptr %.595, align 8
  %.627 = icmp sgt i64 %.596, -1
  br i1 %.627, label %B586, label %B1854
B586:
  %.634 = getelementptr i64, ptr %arg.waits, i64 %.596
  %.635 = load i64, ptr %.634, align 8
  %.636 = add nsw i64 %.635, -1
  store i64 %.636, ptr %.634, align 8
  %.645 = icmp eq i64 %.636, 0
  br i1 %.645, label %B12.i337, label %B1854
B12.i337:
  %at.2.1.i338 = phi i64 [ %.35.i340, %B102.i346 ], [ %size.10.0, %B586 ]
  %.34.i339 = add nsw i64 %at.2.1.i338, -1
  %.35.i340 = ashr i64 %.34.i339, 1
  %.41.i341 = getelementptr double, ptr %arg.heap_s, i64 %.35.i340
  %.42.i342 = load double, ptr %.41.i341, align 8
  %.44.i343 = fcmp olt double %.42.i342, %.385
  br i1 %.44.i343, label %after3, label %B52.i344
B52.i344:
  %.51.i345 = fcmp oeq double %.42.i342, %.385
  br i1 %.51.i345, label %B76.i356, label %B102.i346
B76.i356:
  %.55.i357 = getelementptr i64, ptr %arg.heap, i64 %.35.i340
  %.56.i358 = load i64, ptr %.55.i357, align 8
  %.58.i359 = icmp slt i64 %.56.i358, %.596
  br i1 %.58.i359, label %after3, label %B102.i346
B102.i346:
  %.74.i347 = getelementptr double, ptr %arg.heap_s, i64 %at.2.1.i338
  store double %.42.i342, ptr %.74.i347, align 8
  %.78.i348 = getelementptr i64, ptr %arg.heap, i64 %.35.i340
  %.79.i349 = load i64, ptr %.78.i348, align 8
  %.82.i350 = getelementptr i64, ptr %arg.heap, i64 %at.2.1.i338
  store i64 %.79.i349, ptr %.82.i350, align 8
  %.91.not.i351 = icmp eq i64 %.35.i340, 0
  br i1 %.91.not.i351, label %after3, label %B12.i337
after3:
  %at.3.0.i352 = phi i64 [ 0, %B102.i346 ], [ %at.2.1.i338, %B12.i337 ], [ %at.2.1.i338, %B76.i356 ]
  %.103.i353 = getelementptr double, ptr %arg.heap_s, i64 %at.3.0.i352
  store double %.385, ptr %.103.i353, align 8
  %.112.i354 = getelementptr i64, ptr %arg.heap, i64 %at.3.0.i352
  store i64 %.596, ptr %.112.i354, align 8
  %.121.i355 = add nsw i64 %size.10.0, 1
  br label %B1854
B684:
  %.702 = icmp slt i64 %.391, %.700
  br i1 %.702, label %B702, label %B940
B702:
  br i1 %.1024468.not, label %B886, label %B736.if.lr.ph
B736.if.lr.ph:
  %.832 = mul nsw i64 %spec.select, %arg.columns
  %5 = getelementptr i64, ptr %arg.links, i64 %.832
  %.873 = getelementptr double, ptr %arg.nbytes, i64 %spec.select
  br label %B736.if
B886:
  %now_s.2.2.lcssa = phi double [ %.385, %B702 ], [ %.13.i439, %B736.if ]
  %.895 = add nsw i64 %spec.select, %.700
  %.26.not.i361 = icmp eq i64 %.11.i, 0
  br i1 %.26.not.i361, label %after4, label %B12.i362
B12.i362:
  %at.2.1.i363 = phi i64 [ %.35.i365, %B102.i371 ], [ %.11.i, %B886 ]
  %.34.i364 = add nsw i64 %at.2.1.i363, -1
  %.35.i365 = ashr i64 %.34.i364, 1
  %.41.i366 = getelementptr double, ptr %arg.heap_s, i64 %.35.i365
  %.42.i367 = load double, ptr %.41.i366, align 8
  %.44.i368 = fcmp olt double %.42.i367, %now_s.2.2.lcssa
  br i1 %.44.i368, label %after4, label %B52.i369
B52.i369:
  %.51.i370 = fcmp oeq double %.42.i367, %now_s.2.2.lcssa
  br i1 %.51.i370, label %B76.i381, label %B102.i371
B76.i381:
  %.55.i382 = getelementptr i64, ptr %arg.heap, i64 %.35.i365
  %.56.i383 = load i64, ptr %.55.i382, align 8
  %.58.i384 = icmp slt i64 %.56.i383, %.895
  br i1 %.58.i384, label %after4, label %B102.i371
B102.i371:
  %.74.i372 = getelementptr double, ptr %arg.heap_s, i64 %at.2.1.i363
  store double %.42.i367, ptr %.74.i372, align 8
  %.78.i373 = getelementptr i64, ptr %arg.heap, i64 %.35.i365
  %.79.i374 = load i64, ptr %.78.i373, align 8
  %.82.i375 = getelementptr i64, ptr %arg.heap, i64 %at.2.1.i363
  store i64 %.79.i374, ptr %.82.i375, align 8
  %.91.not.i376 = icmp eq i64 %.35.i365, 0
  br i1 %.91.not.i376, label %after4, label %B12.i362
after4:
  %at.3.0.i377 = phi i64 [ 0, %B886 ], [ 0, %B102.i371 ], [ %at.2.1.i363, %B76.i381 ], [ %at.2.1.i363, %B12.i362 ]
  %.103.i378 = getelementptr double, ptr %arg.heap_s, i64 %at.3.0.i377
  store double %now_s.2.2.lcssa, ptr %.103.i378, align 8
  %.112.i379 = getelementptr i64, ptr %arg.heap, i64 %at.3.0.i377
  store i64 %.895, ptr %.112.i379, align 8
  br label %B1854
B940:
  %.936 = icmp slt i64 %.391, %.934
  br i1 %.936, label %B958, label %B1406
B958:
  br i1 %.1024468.not, label %B1310, label %B996.if.lr.ph
B996.if.lr.ph:
  %.1064 = mul nsw i64 %spec.select, %arg.columns
  %6 = getelementptr i64, ptr %arg.links, i64 %.1064
  %.1111 = getelementptr double, ptr %arg.nbytes, i64 %spec.select
  %.1112.pre = load double, ptr %.1111, align 8
  br label %B996.if
B1310:
  %ends_s.2.2.lcssa = phi double [ %.385, %B958 ], [ %.19.i445, %B996.if ]
  %.1183 = getelementptr double, ptr %arg.added_s, i64 %spec.select
  %.1184 = load double, ptr %.1183, align 8
  %.1186 = fadd double %ends_s.2.2.lcssa, %.1184
  %.1192 = add nsw i64 %spec.select, %.934
  %.26.not.i386 = icmp eq i64 %.11.i, 0
  br i1 %.26.not.i386, label %after5, label %B12.i387
B12.i387:
  %at.2.1.i388 = phi i64 [ %.35.i390, %B102.i396 ], [ %.11.i, %B1310 ]
  %.34.i389 = add nsw i64 %at.2.1.i388, -1
  %.35.i390 = ashr i64 %.34.i389, 1
  %.41.i391 = getelementptr double, ptr %arg.heap_s, i64 %.35.i390
  %.42.i392 = load double, ptr %.41.i391, align 8
  %.44.i393 = fcmp olt double %.42.i392, %.1186
  br i1 %.44.i393, label %after5, label %B52.i394
B52.i394:
  %.51.i395 = fcmp oeq double %.42.i392, %.1186
  br i1 %.51.i395, label %B76.i406, label %B102.i396
B76.i406:
  %.55.i407 = getelementptr i64, ptr %arg.heap, i64 %.35.i390
  %.56.i408 = load i64, ptr %.55.i407, align 8
  %.58.i409 = icmp slt i64 %.56.i408, %.1192
  br i1 %.58.i409, label %after5, label %B102.i396
B102.i396:
  %.74.i397 = getelementptr double, ptr %arg.heap_s, i64 %at.2.1.i388
  store double %.42.i392, ptr %.74.i397, align 8
  %.78.i398 = getelementptr i64, ptr %arg.heap, i64 %.35.i390
  %.79.i399 = load i64, ptr %.78.i398, align 8
  %.82.i400 = getelementptr i64, ptr %arg.heap, i64 %at.2.1.i388
  store i64 %.79.i399, ptr %.82.i400, align 8
  %.91.not.i401 = icmp eq i64 %.35.i390, 0
  br i1 %.91.not.i401, label %after5, label %B12.i387
after5:
  %at.3.0.i402 = phi i64 [ 0, %B1310 ], [ 0, %B102.i396 ], [ %at.2.1.i388, %B76.i406 ], [ %at.2.1.i388, %B12.i387 ]
  %.103.i403 = getelementptr double, ptr %arg.heap_s, i64 %at.3.0.i402
  store double %.1186, ptr %.103.i403, align 8
  %.112.i404 = getelementptr i64, ptr %arg.heap, i64 %at.3.0.i402
  store i64 %.1192, ptr %.112.i404, align 8
  br label %B1854
B1406:
  %.1235 = getelementptr double, ptr %arg.added_s, i64 %spec.select
  %.1236 = load double, ptr %.1235, align 8
  %.1238 = fsub double %.385, %.1236
  %.1241 = getelementptr i64, ptr %arg.src, i64 %spec.select
  %.1242 = load i64, ptr %.1241, align 8
  %.1244 = getelementptr double, ptr %arg.finish_s, i64 %.1242
  %.1245 = load double, ptr %.1244, align 8
  %.12.i = fcmp ogt double %.1245, %.1238
  %.13.i = select i1 %.12.i, double %.1245, double %.1238
  store double %.13.i, ptr %.1244, align 8
  %.1283 = getelementptr i64, ptr %arg.dst, i64 %spec.select
  %.1284 = load i64, ptr %.1283, align 8
  %.1286 = getelementptr double, ptr %arg.finish_s, i64 %.1284
  %.1287 = load double, ptr %.1286, align 8
  %.12.i411 = fcmp ogt double %.1287, %.385
  %.13.i412 = select i1 %.12.i411, double %.1287, double %.385
  store double %.13.i412, ptr %.1286, align 8
  %.1326 = getelementptr i64, ptr %arg.first, i64 %spec.select
  %.1327 = load i64, ptr %.1326, align 8
  %.1333 = getelementptr i8, ptr %.1326, i64 8
  %.1334 = load i64, ptr %.1333, align 8
  %.1371 = sub i64 %.1334, %.1327
  %.1417463.not = icmp slt i64 %.1371, 1
  br i1 %.1417463.not, label %B1854, label %B1712.if
B1814:
  %.26.not.i413 = icmp eq i64 %size.13.2466, 0
  br i1 %.26.not.i413, label %after6, label %B12.i414
B12.i414:
  %at.2.1.i415 = phi i64 [ %.35.i417, %B102.i423 ], [ %size.13.2466, %B1814 ]
  %.34.i416 = add nsw i64 %at.2.1.i415, -1
  %.35.i417 = ashr i64 %.34.i416, 1
  %.41.i418 = getelementptr double, ptr %arg.heap_s, i64 %.35.i417
  %.42.i419 = load double, ptr %.41.i418, align 8
  %.44.i420 = fcmp olt double %.42.i419, %.385
  br i1 %.44.i420, label %after6, label %B52.i421
B52.i421:
  %.51.i422 = fcmp oeq double %.42.i419, %.385
  br i1 %.51.i422, label %B76.i433, label %B102.i423
B76.i433:
  %.55.i434 = getelementptr i64, ptr %arg.heap, i64 %.35.i417
  %.56.i435 = load i64, ptr %.55.i434, align 8
  %.58.i436 = icmp slt i64 %.56.i435, %.1463
  br i1 %.58.i436, label %after6, label %B102.i423
B102.i423:
  %.74.i424 = getelementptr double, ptr %arg.heap_s, i64 %at.2.1.i415
  store double %.42.i419, ptr %.74.i424, align 8
  %.78.i425 = getelementptr i64, ptr %arg.heap, i64 %.35.i417
  %.79.i426 = load i64, ptr %.78.i425, align 8
  %.82.i427 = getelementptr i64, ptr %arg.heap, i64 %at.2.1.i415
  store i64 %.79.i426, ptr %.82.i427, align 8
  %.91.not.i428 = icmp eq i64 %.35.i417, 0
  br i1 %.91.not.i428, label %after6, label %B12.i414
after6:
  %at.3.0.i429 = phi i64 [ 0, %B1814 ], [ 0, %B102.i423 ], [ %at.2.1.i415, %B76.i433 ], [ %at.2.1.i415, %B12.i414 ]
  %.103.i430 = getelementptr double, ptr %arg.heap_s, i64 %at.3.0.i429
  store double %.385, ptr %.103.i430, align 8
  %.112.i431 = getelementptr i64, ptr %arg.heap, i64 %at.3.0.i429
  store i64 %.1463, ptr %.112.i431, align 8
  %.121.i432 = add nsw i64 %size.13.2466, 1
  br label %B1852
B1852:
  %size.14.3 = phi i64 [ %.121.i432, %after6 ], [ %size.13.2466, %B1712.if ]
  %.1417 = icmp sgt i64 %.1361.0465, 1
  br i1 %.1417, label %B1712.if, label %B1854
B1854:
  %size.11.1 = phi i64 [ %size.10.0, %after2 ], [ %size.10.0, %after4 ], [ %size.10.0, %after5 ], [ %.121.i355, %after3 ], [ %size.10.0, %B586 ], [ %.11.i, %B1406 ], [ %size.14.3, %B1852 ]
  %.1563.not = icmp eq i64 %size.11.1, 0
  br i1 %.1563.not, label %common.ret, label %B170
common.ret:
  ret i32 0
B34.if:
  %.82.0457 = phi i64 [ %.153, %B34.if ], [ 0, %entry ]
  %.153 = add nuw nsw i64 %.82.0457, 1
  %.179 = getelementptr double, ptr %arg.finish_s, i64 %.82.0457
  %.180 = load double, ptr %.179, align 8
  %.182 = getelementptr double, ptr %arg.came_s, i64 %.82.0457
  store double %.180, ptr %.182, align 8
  %exitcond.not = icmp eq i64 %arg.num_ranks, %.153
  br i1 %exitcond.not, label %B62, label %B34.if
B96.if:
  %size.8.0462 = phi i64 [ %size.9.1, %B162 ], [ 0, %B62 ]
  %.216.0460 = phi i64 [ %.285, %B162 ], [ 0, %B62 ]
  %.285 = add nuw nsw i64 %.216.0460, 1
  %.319 = getelementptr i64, ptr %arg.waits, i64 %.216.0460
  %.320 = load i64, ptr %.319, align 8
  %.321 = icmp eq i64 %.320, 0
  br i1 %.321, label %B124, label %B162
7:
  %8 = trunc nuw i64 %.391 to i32
  %9 = urem i32 %8, %0
  %10 = zext i32 %9 to i64
  br label %B170.endif.endif.endif
11:
  %12 = srem i64 %.391, %arg.num_messages
  br label %B170.endif.endif.endif
B170.endif.endif.endif:
  %13 = phi i64 [ %10, %7 ], [ %12, %11 ]
  %.474 = xor i64 %13, %arg.num_messages
  %.475 = icmp slt i64 %.474, 0
  %.484 = select i1 %.475, i64 %arg.num_messages, i64 0
  %spec.select = add i64 %.484, %13
  %.499 = icmp slt i64 %.391, %arg.num_messages
  br i1 %.499, label %B310, label %B684
B736.if:
  %now_s.2.2476 = phi double [ %.385, %B736.if.lr.ph ], [ %.13.i439, %B736.if ]
  %.739.0475 = phi i64 [ %.1003, %B736.if.lr.ph ], [ %.801, %B736.if ]
  %.736.0474 = phi i64 [ 0, %B736.if.lr.ph ], [ %.805, %B736.if ]
  %.801 = add nsw i64 %.739.0475, -1
  %.805 = add nuw i64 %.736.0474, 2
  %.835 = getelementptr i64, ptr %5, i64 %.736.0474
  %.836 = load i64, ptr %.835, align 8
  %.838 = getelementptr double, ptr %arg.free_s, i64 %.836
  %.839 = load double, ptr %.838, align 8
  %.12.i438 = fcmp ogt double %.839, %now_s.2.2476
  %.13.i439 = select i1 %.12.i438, double %.839, double %now_s.2.2476
  %.874 = load double, ptr %.873, align 8
  %.876 = getelementptr double, ptr %arg.capacity, i64 %.836
  %.877 = load double, ptr %.876, align 8
  %.881 = fdiv double %.874, %.877
  %.882 = fadd double %.13.i439, %.881
  store double %.882, ptr %.838, align 8
  %.792 = icmp sgt i64 %.739.0475, 1
  br i1 %.792, label %B736.if, label %B886
B996.if:
  %.1112 = phi double [ %.1112.pre, %B996.if.lr.ph ], [ %.1130, %B996.if ]
  %ends_s.2.2471 = phi double [ %.385, %B996.if.lr.ph ], [ %.19.i445, %B996.if ]
  %.971.0470 = phi i64 [ %.1003, %B996.if.lr.ph ], [ %.1033, %B996.if ]
  %.968.0469 = phi i64 [ 0, %B996.if.lr.ph ], [ %.1037, %B996.if ]
  %.1033 = add nsw i64 %.971.0470, -1
  %.1037 = add nuw i64 %.968.0469, 2
  %.1067 = getelementptr i64, ptr %6, i64 %.968.0469
  %.1068 = load i64, ptr %.1067, align 8
  %.1075 = getelementptr i8, ptr %.1067, i64 8
  %.1076 = load i64, ptr %.1075, align 8
  %.1078 = getelementptr double, ptr %arg.free_s, i64 %.1076
  %.1079 = load double, ptr %.1078, align 8
  %.12.i440 = fcmp ogt double %.1079, %.385
  %.13.i441 = select i1 %.12.i440, double %.1079, double %.385
  %.1114 = getelementptr double, ptr %arg.capacity, i64 %.1076
  %.1115 = load double, ptr %.1114, align 8
  %.1119 = fdiv double %.1112, %.1115
  %.1120 = fadd double %.13.i441, %.1119
  store double %.1120, ptr %.1078, align 8
  %.1130 = load double, ptr %.1111, align 8
  %.1132 = getelementptr double, ptr %arg.capacity, i64 %.1068
  %.1133 = load double, ptr %.1132, align 8
  %.1137 = fdiv double %.1130, %.1133
  %.1139 = fadd double %.385, %.1137
  %.16.i442 = fcmp ogt double %.1120, %ends_s.2.2471
  %.17.i443 = select i1 %.16.i442, double %.1120, double %ends_s.2.2471
  %.18.i444 = fcmp ogt double %.1139, %.17.i443
  %.19.i445 = select i1 %.18.i444, double %.1139, double %.17.i443
  %.1024 = icmp sgt i64 %.971.0470, 1
  br i1 %.1024, label %B996.if, label %B1310
B1712.if:
  %size.13.2466 = phi i64 [ %size.14.3, %B1852 ], [ %.11.i, %B1406 ]
  %.1361.0465 = phi i64 [ %.1426, %B1852 ], [ %.1371, %B1406 ]
  %.1358.0464 = phi i64 [ %.1430, %B1852 ], [ %.1327, %B1406 ]
  %.1426 = add nsw i64 %.1361.0465, -1
  %.1430 = add i64 %.1358.0464, 1
  %.1462 = getelementptr i64, ptr %arg.followers, i64 %.1358.0464
  %.1463 = load i64, ptr %.1462, align 8
  %.1493 = getelementptr i64, ptr %arg.waits, i64 %.1463
  %.1494 = load i64, ptr %.1493, align 8
  %.1495 = add nsw i64 %.1494, -1
  store i64 %.1495, ptr %.1493, align 8
  %.1504 = icmp eq i64 %.1495, 0
  br i1 %.1504, label %B1814, label %B1852
}
