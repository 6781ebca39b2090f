; numba 0.68.1, llvmlite 0.50.0
; run_queues, sha256 bcd0e41381637293c92626bd53444d82126d330973d0f249847aa1a86c55b151
define i32 @kernel(i64 %arg.num_ranks, i64 %arg.num_messages, i64 %arg.num_links, i64 %arg.columns, ptr %arg.nbytes, ptr %arg.start_s, ptr %arg.added_s, ptr %arg.links, ptr %arg.capacity, ptr %arg.src, ptr %arg.dst, ptr %arg.waits, ptr %arg.first, ptr %arg.followers, ptr %arg.next_post, ptr %arg.left, ptr %arg.free_s, ptr %arg.heap_s, ptr %arg.heap, ptr %arg.came_s, ptr %arg.finish_s) {
entry:
  %.146495.not = icmp slt i64 %arg.num_ranks, 1
  br i1 %.146495.not, label %B62, label %B34.if
B62:
  %.277498.not = icmp slt i64 %arg.num_links, 1
  br i1 %.277498.not, label %B108, label %B92.if.preheader
B92.if.preheader:
  %0 = shl nuw i64 %arg.num_links, 3
  tail call void @llvm.memset.p0.i64(ptr align 8 %arg.free_s, i8 0, i64 %0, i1 false)
  br label %B108
B108:
  %.406501.not = icmp slt i64 %arg.num_messages, 1
  br i1 %.406501.not, label %common.ret, label %B142.if
B192:
  %.26.not.i = icmp eq i64 %size.8.0505, 0
  br i1 %.26.not.i, label %after0, label %B12.i
B12.i:
  %at.2.1.i = phi i64 [ %.35.i, %B102.i ], [ %size.8.0505, %B192 ]
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
  %.58.i = icmp slt i64 %.56.i, %.350.0503
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
  %at.3.0.i = phi i64 [ 0, %B192 ], [ 0, %B102.i ], [ %at.2.1.i, %B76.i ], [ %at.2.1.i, %B12.i ]
  %.103.i = getelementptr double, ptr %arg.heap_s, i64 %at.3.0.i
  store double 0.000000e+00, ptr %.103.i, align 8
  %.112.i = getelementptr i64, ptr %arg.heap, i64 %at.3.0.i
  store i64 %.350.0503, ptr %.112.i, align 8
  %.121.i = add nsw i64 %size.8.0505, 1
  br label %B230
B230:
  %size.9.1 = phi i64 [ %.121.i, %after0 ], [ %size.8.0505, %B142.if ]
  %exitcond521.not = icmp eq i64 %arg.num_messages, %.419
  br i1 %exitcond521.not, label %B232, label %B142.if
B232:
  %.520.not = icmp eq i64 %size.9.1, 0
  br i1 %.520.not, label %common.ret, label %B238.preheader
B238.preheader:
  %1 = trunc nuw i64 %arg.num_messages to i32
  %.844 = shl nuw nsw i64 %arg.num_messages, 1
  %.1078 = mul nuw nsw i64 %arg.num_messages, 3
  %2 = and i64 %arg.columns, 1
  %3 = lshr i64 %arg.columns, 1
  %.1147 = add nuw nsw i64 %3, %2
  %.1126.inv = icmp slt i64 %arg.columns, 1
  %.1168511.not525 = icmp eq i64 %.1147, 0
  %.1168511.not = select i1 %.1126.inv, i1 true, i1 %.1168511.not525
  br label %B238
B238:
  %size.10.0 = phi i64 [ %size.11.1, %B1922 ], [ %size.9.1, %B238.preheader ]
  %.529 = load double, ptr %arg.heap_s, align 8
  %.535 = load i64, ptr %arg.heap, align 8
  %.11.i = add nsw i64 %size.10.0, -1
  %.17.i = getelementptr double, ptr %arg.heap_s, i64 %.11.i
  %.18.i = load double, ptr %.17.i, align 8
  %.24.i = getelementptr i64, ptr %arg.heap, i64 %.11.i
  %.25.i = load i64, ptr %.24.i, align 8
  %.38.i = icmp sgt i64 %size.10.0, 2
  br i1 %.38.i, label %B74.i, label %after1
B74.i:
  %at.2.1.i343 = phi i64 [ %child.2.1.i, %B298.i ], [ 0, %B238 ]
  %.46.i = shl nsw i64 %at.2.1.i343, 1
  %.47.i = or disjoint i64 %.46.i, 1
  %.56.i344 = add nsw i64 %.46.i, 2
  %.62.i = icmp slt i64 %.56.i344, %.11.i
  br i1 %.62.i, label %B112.i, label %B224.i
B112.i:
  %.68.i = getelementptr double, ptr %arg.heap_s, i64 %.56.i344
  %.69.i = load double, ptr %.68.i, align 8
  %.72.i = getelementptr double, ptr %arg.heap_s, i64 %.47.i
  %.73.i = load double, ptr %.72.i, align 8
  %.74.i346 = fcmp olt double %.69.i, %.73.i
  br i1 %.74.i346, label %B220.i, label %B148.i
B148.i:
  %.87.i = fcmp oeq double %.69.i, %.73.i
  br i1 %.87.i, label %B184.i, label %B224.i
B184.i:
  %.94.i = getelementptr i64, ptr %arg.heap, i64 %.56.i344
  %.95.i = load i64, ptr %.94.i, align 8
  %.98.i = getelementptr i64, ptr %arg.heap, i64 %.47.i
  %.99.i = load i64, ptr %.98.i, align 8
  %.102.i = icmp slt i64 %.95.i, %.99.i
  br i1 %.102.i, label %B220.i, label %B224.i
B220.i:
  br label %B224.i
B224.i:
  %child.2.1.i = phi i64 [ %.56.i344, %B220.i ], [ %.47.i, %B184.i ], [ %.47.i, %B148.i ], [ %.47.i, %B74.i ]
  %.118.i = getelementptr double, ptr %arg.heap_s, i64 %child.2.1.i
  %.119.i = load double, ptr %.118.i, align 8
  %.121.i345 = fcmp ogt double %.119.i, %.18.i
  br i1 %.121.i345, label %after1, label %B248.i
B248.i:
  %.128.i = fcmp oeq double %.119.i, %.18.i
  br i1 %.128.i, label %B272.i, label %B298.i
B272.i:
  %.132.i = getelementptr i64, ptr %arg.heap, i64 %child.2.1.i
  %.133.i = load i64, ptr %.132.i, align 8
  %.135.i = icmp sgt i64 %.133.i, %.25.i
  br i1 %.135.i, label %after1, label %B298.i
B298.i:
  %.151.i = getelementptr double, ptr %arg.heap_s, i64 %at.2.1.i343
  store double %.119.i, ptr %.151.i, align 8
  %.155.i = getelementptr i64, ptr %arg.heap, i64 %child.2.1.i
  %.156.i = load i64, ptr %.155.i, align 8
  %.159.i = getelementptr i64, ptr %arg.heap, i64 %at.2.1.i343
  store i64 %.156.i, ptr %.159.i, align 8
  %.168.i = shl nsw i64 %child.2.1.i, 1
  %.169.i = or disjoint i64 %.168.i, 1
  %.171.i = icmp slt i64 %.169.i, %.11.i
  br i1 %.171.i, label %B74.i, label %after1
after1:
  %at.3.0.i342 = phi i64 [ 0, %B238 ], [ %child.2.1.i, %B298.i ], [ %at.2.1.i343, %B272.i ], [ %at.2.1.i343, %B224.i ]
  %.183.i = getelementptr double, ptr %arg.heap_s, i64 %at.3.0.i342
  store double %.18.i, ptr %.183.i, align 8
  %.192.i = getelementptr i64, ptr %arg.heap, i64 %at.3.0.i342
  store i64 %.25.i, ptr %.192.i, align 8
  %4 = or i64 %.535, %arg.num_messages
  %5 = icmp ult i64 %4, 4294967296
  br i1 %5, label %8, label %12
B378:
  %.649 = getelementptr i64, ptr %arg.src, i64 %spec.select
  %.650 = load i64, ptr %.649, align 8
  %.652 = getelementptr double, ptr %arg.came_s, i64 %.650
  %.653 = load double, ptr %.652, align 8
  %.656 = getelementptr i64, ptr %arg.dst, i64 %spec.select
  %.657 = load i64, ptr %.656, align 8
  %.659 = getelementptr double, ptr %arg.came_s, i64 %.657
  %.660 = load double, ptr %.659, align 8
  %.16.i = fcmp ogt double %.653, %.529
  %.17.i347 = select i1 %.16.i, double %.653, double %.529
  %.18.i348 = fcmp ogt double %.660, %.17.i347
  %.19.i = select i1 %.18.i348, double %.660, double %.17.i347
  %.695 = getelementptr double, ptr %arg.start_s, i64 %spec.select
  %.696 = load double, ptr %.695, align 8
  %.697 = fadd double %.696, %.19.i
  %.700 = add nsw i64 %spec.select, %arg.num_messages
  %.26.not.i349 = icmp eq i64 %.11.i, 0
  br i1 %.26.not.i349, label %after2, label %B12.i350
B12.i350:
  %at.2.1.i351 = phi i64 [ %.35.i353, %B102.i359 ], [ %.11.i, %B378 ]
  %.34.i352 = add nsw i64 %at.2.1.i351, -1
  %.35.i353 = ashr i64 %.34.i352, 1
  %.41.i354 = getelementptr double, ptr %arg.heap_s, i64 %.35.i353
  %.42.i355 = load double, ptr %.41.i354, align 8
  %.44.i356 = fcmp olt double %.42.i355, %.697
  br i1 %.44.i356, label %after2, label %B52.i357
B52.i357:
  %.51.i358 = fcmp oeq double %.42.i355, %.697
  br i1 %.51.i358, label %B76.i369, label %B102.i359
B76.i369:
  %.55.i370 = getelementptr i64, ptr %arg.heap, i64 %.35.i353
  %.56.i371 = load i64, ptr %.55.i370, align 8
  %.58.i372 = icmp slt i64 %.56.i371, %.700
  br i1 %.58.i372, label %after2, label %B102.i359
B102.i359:
  %.74.i360 = getelementptr double, ptr %arg.heap_s, i64 %at.2.1.i351
  store double %.42.i355, ptr %.74.i360, align 8
  %.78.i361 = getelementptr i64, ptr %arg.heap, i64 %.35.i353
  %.79.i362 = load i64, ptr %.78.i361, align 8
  %.82.i363 = getelementptr i64, ptr %arg.heap, i64 %at.2.1.i351
  store i64 %.79.i362, ptr %.82.i363, align 8
  %.91.not.i364 = icmp eq i64 %.35.i353, 0
  br i1 %.91.not.i364, label %after2, label %B12.i350
after2:
  %at.3.0.i365 = phi i64 [ 0, %B378 ], [ 0, %B102.i359 ], [ %at.2.1.i351, %B76.i369 ], [ %at.2.1.i351, %B12.i350 ]
  %.103.i366 = getelementptr double, ptr %arg.heap_s, i64 %at.3.0.i365
  store double %.697, ptr %.103.i366, align 8
  %.112.i367 = getelementptr i64, ptr %arg.heap, i64 %at.3.0.i365
  store i64 %.700, ptr %.112.i367, align 8
  %.739 = getelementptr i64, ptr %arg.next_post, i64 %spec.select
  %.740 = load i64, ptr %.739, align 8
  %.771 = icmp sgt i64 %.740, -1
  br i1 %.771, label %B654, label %B1922
B654:
  %.778 = getelementptr i64, ptr %arg.left, i64 %.740
  %.779 = load i64, ptr %.778, align 8
  %.780 = add nsw i64 %.779, -1
  store i64 %.780, ptr %.778, align 8
  %.789 = icmp eq i64 %.780, 0
  br i1 %.789, label %B12.i375, label %B1922
B12.i375:
  %at.2.1.i376 = phi i64 [ %.35.i378, %B102.i384 ], [ %size.10.0, %B654 ]
  %.34.i377 = add nsw i64 %at.2.1.i376, -1
  %.35.i378 = ashr i64 %.34.i377, 1
  %.41.i379 = getelementptr double, ptr %arg.heap_s, i64 %.35.i378
  %.42.i380 = load double, ptr %.41.i379, align 8
  %.44.i381 = fcmp olt double %.42.i380, %.529
  br i1 %.44.i381, label %after3, label %B52.i382
B52.i382:
  %.51.i383 = fcmp oeq double %.42.i380, %.529
  br i1 %.51.i383, label %B76.i394, label %B102.i384
B76.i394:
  %.55.i395 = getelementptr i64, ptr %arg.heap, i64 %.35.i378
  %.56.i396 = load i64, ptr %.55.i395, align 8
  %.58.i397 = icmp slt i64 %.56.i396, %.740
  br i1 %.58.i397, label %after3, label %B102.i384
B102.i384:
  %.74.i385 = getelementptr double, ptr %arg.heap_s, i64 %at.2.1.i376
  store double %.42.i380, ptr %.74.i385, align 8
  %.78.i386 = getelementptr i64, ptr %arg.heap, i64 %.35.i378
  %.79.i387 = load i64, ptr %.78.i386, align 8
  %.82.i388 = getelementptr i64, ptr %arg.heap, i64 %at.2.1.i376
  store i64 %.79.i387, ptr %.82.i388, align 8
  %.91.not.i389 = icmp eq i64 %.35.i378, 0
  br i1 %.91.not.i389, label %after3, label %B12.i375
after3:
  %at.3.0.i390 = phi i64 [ 0, %B102.i384 ], [ %at.2.1.i376, %B12.i375 ], [ %at.2.1.i376, %B76.i394 ]
  %.103.i391 = getelementptr double, ptr %arg.heap_s, i64 %at.3.0.i390
  store double %.529, ptr %.103.i391, align 8
  %.112.i392 = getelementptr i64, ptr %arg.heap, i64 %at.3.0.i390
  store i64 %.740, ptr %.112.i392, align 8
  %.121.i393 = add nsw i64 %size.10.0, 1
  br label %B1922
B752:
  %.846 = icmp slt i64 %.535, %.844
  br i1 %.846, label %B770, label %B1008
B770:
  br i1 %.1168511.not, label %B954, label %B804.if.lr.ph
B804.if.lr.ph:
  %.976 = mul nsw i64 %spec.select, %arg.columns
  %6 = getelementptr i64, ptr %arg.links, i64 %.976
  %.1017 = getelementptr double, ptr %arg.nbytes, i64 %spec.select
  br label %B804.if
B954:
  %now_s.2.2.lcssa = phi double [ %.529, %B770 ], [ %.13.i477, %B804.if ]
  %.1039 = add nsw i64 %spec.select, %.844
  %.26.not.i399 = icmp eq i64 %.11.i, 0
  br i1 %.26.not.i399, label %after4, label %B12.i400
B12.i400:
  %at.2.1.i401 = phi i64 [ %.35.i403, %B102.i409 ], [ %.11.i, %B954 ]
  %.34.i402 = add nsw i64 %at.2.1.i401, -1
  %.35.i403 = ashr i64 %.34.i402, 1
  %.41.i404 = getelementptr double, ptr %arg.heap_s, i64 %.35.i403
  %.42.i405 = load double, ptr %.41.i404, align 8
  %.44.i406 = fcmp olt double %.42.i405, %now_s.2.2.lcssa
  br i1 %.44.i406, label %after4, label %B52.i407
B52.i407:
  %.51.i408 = fcmp oeq double %.42.i405, %now_s.2.2.lcssa
  br i1 %.51.i408, label %B76.i419, label %B102.i409
B76.i419:
  %.55.i420 = getelementptr i64, ptr %arg.heap, i64 %.35.i403
  %.56.i421 = load i64, ptr %.55.i420, align 8
  %.58.i422 = icmp slt i64 %.56.i421, %.1039
  br i1 %.58.i422, label %after4, label %B102.i409
B102.i409:
  %.74.i410 = getelementptr double, ptr %arg.heap_s, i64 %at.2.1.i401
  store double %.42.i405, ptr %.74.i410, align 8
  %.78.i411 = getelementptr i64, ptr %arg.heap, i64 %.35.i403
  %.79.i412 = load i64, ptr %.78.i411, align 8
  %.82.i413 = getelementptr i64, ptr %arg.heap, i64 %at.2.1.i401
  store i64 %.79.i412, ptr %.82.i413, align 8
  %.91.not.i414 = icmp eq i64 %.35.i403, 0
  br i1 %.91.not.i414, label %after4, label %B12.i400
after4:
  %at.3.0.i415 = phi i64 [ 0, %B954 ], [ 0, %B102.i409 ], [ %at.2.1.i401, %B76.i419 ], [ %at.2.1.i401, %B12.i400 ]
  %.103.i416 = getelementptr double, ptr %arg.heap_s, i64 %at.3.0.i415
  store double %now_s.2.2.lcssa, ptr %.103.i416, align 8
  %.112.i417 = getelementptr i64, ptr %arg.heap, i64 %at.3.0.i415
  store i64 %.1039, ptr %.112.i417, align 8
  br label %B1922
B1008:
  %.1080 = icmp slt i64 %.535, %.1078
  br i1 %.1080, label %B1026, label %B1474
B1026:
  br i1 %.1168511.not, label %B1378, label %B1064.if.lr.ph
B1064.if.lr.ph:
  %.1208 = mul nsw i64 %spec.select, %arg.columns
  %7 = getelementptr i64, ptr %arg.links, i64 %.1208
  %.1255 = getelementptr double, ptr %arg.nbytes, i64 %spec.select
  %.1256.pre = load double, ptr %.1255, align 8
  br label %B1064.if
B1378:
  %ends_s.2.2.lcssa = phi double [ %.529, %B1026 ], [ %.19.i483, %B1064.if ]
  %.1327 = getelementptr double, ptr %arg.added_s, i64 %spec.select
  %.1328 = load double, ptr %.1327, align 8
  %.1330 = fadd double %ends_s.2.2.lcssa, %.1328
  %.1336 = add nsw i64 %spec.select, %.1078
  %.26.not.i424 = icmp eq i64 %.11.i, 0
  br i1 %.26.not.i424, label %after5, label %B12.i425
B12.i425:
  %at.2.1.i426 = phi i64 [ %.35.i428, %B102.i434 ], [ %.11.i, %B1378 ]
  %.34.i427 = add nsw i64 %at.2.1.i426, -1
  %.35.i428 = ashr i64 %.34.i427, 1
  %.41.i429 = getelementptr double, ptr %arg.heap_s, i64 %.35.i428
  %.42.i430 = load double, ptr %.41.i429, align 8
  %.44.i431 = fcmp olt double %.42.i430, %.1330
  br i1 %.44.i431, label %after5, label %B52.i432
B52.i432:
  %.51.i433 = fcmp oeq double %.42.i430, %.1330
  br i1 %.51.i433, label %B76.i444, label %B102.i434
B76.i444:
  %.55.i445 = getelementptr i64, ptr %arg.heap, i64 %.35.i428
  %.56.i446 = load i64, ptr %.55.i445, align 8
  %.58.i447 = icmp slt i64 %.56.i446, %.1336
  br i1 %.58.i447, label %after5, label %B102.i434
B102.i434:
  %.74.i435 = getelementptr double, ptr %arg.heap_s, i64 %at.2.1.i426
  store double %.42.i430, ptr %.74.i435, align 8
  %.78.i436 = getelementptr i64, ptr %arg.heap, i64 %.35.i428
  %.79.i437 = load i64, ptr %.78.i436, align 8
  %.82.i438 = getelementptr i64, ptr %arg.heap, i64 %at.2.1.i426
  store i64 %.79.i437, ptr %.82.i438, align 8
  %.91.not.i439 = icmp eq i64 %.35.i428, 0
  br i1 %.91.not.i439, label %after5, label %B12.i425
after5:
  %at.3.0.i440 = phi i64 [ 0, %B1378 ], [ 0, %B102.i434 ], [ %at.2.1.i426, %B76.i444 ], [ %at.2.1.i426, %B12.i425 ]
  %.103.i441 = getelementptr double, ptr %arg.heap_s, i64 %at.3.0.i440
  store double %.1330, ptr %.103.i441, align 8
  %.112.i442 = getelementptr i64, ptr %arg.heap, i64 %at.3.0.i440
  store i64 %.1336, ptr %.112.i442, align 8
  br label %B1922
B1474:
  %.1379 = getelementptr double, ptr %arg.added_s, i64 %spec.select
  %.1380 = load double, ptr %.1379, align 8
  %.1382 = fsub double %.529, %.1380
  %.1385 = getelementptr i64, ptr %arg.src, i64 %spec.select
  %.1386 = load i64, ptr %.1385, align 8
  %.1388 = getelementptr double, ptr %arg.finish_s, i64 %.1386
  %.1389 = load double, ptr %.1388, align 8
  %.12.i = fcmp ogt double %.1389, %.1382
  %.13.i = select i1 %.12.i, double %.1389, double %.1382
  store double %.13.i, ptr %.1388, align 8
  %.1427 = getelementptr i64, ptr %arg.dst, i64 %spec.select
  %.1428 = load i64, ptr %.1427, align 8
  %.1430 = getelementptr double, ptr %arg.finish_s, i64 %.1428
  %.1431 = load double, ptr %.1430, align 8
  %.12.i449 = fcmp ogt double %.1431, %.529
  %.13.i450 = select i1 %.12.i449, double %.1431, double %.529
  store double %.13.i450, ptr %.1430, align 8
  %.1470 = getelementptr i64, ptr %arg.first, i64 %spec.select
  %.1471 = load i64, ptr %.1470, align 8
  %.1477 = getelementptr i8, ptr %.1470, i64 8
  %.1478 = load i64, ptr %.1477, align 8
  %.1515 = sub i64 %.1478, %.1471
  %.1561506.not = icmp slt i64 %.1515, 1
  br i1 %.1561506.not, label %B1922, label %B1780.if
B1882:
  %.26.not.i451 = icmp eq i64 %size.13.2509, 0
  br i1 %.26.not.i451, label %after6, label %B12.i452
B12.i452:
  %at.2.1.i453 = phi i64 [ %.35.i455, %B102.i461 ], [ %size.13.2509, %B1882 ]
  %.34.i454 = add nsw i64 %at.2.1.i453, -1
  %.35.i455 = ashr i64 %.34.i454, 1
  %.41.i456 = getelementptr double, ptr %arg.heap_s, i64 %.35.i455
  %.42.i457 = load double, ptr %.41.i456, align 8
  %.44.i458 = fcmp olt double %.42.i457, %.529
  br i1 %.44.i458, label %after6, label %B52.i459
B52.i459:
  %.51.i460 = fcmp oeq double %.42.i457, %.529
  br i1 %.51.i460, label %B76.i471, label %B102.i461
B76.i471:
  %.55.i472 = getelementptr i64, ptr %arg.heap, i64 %.35.i455
  %.56.i473 = load i64, ptr %.55.i472, align 8
  %.58.i474 = icmp slt i64 %.56.i473, %.1607
  br i1 %.58.i474, label %after6, label %B102.i461
B102.i461:
  %.74.i462 = getelementptr double, ptr %arg.heap_s, i64 %at.2.1.i453
  store double %.42.i457, ptr %.74.i462, align 8
  %.78.i463 = getelementptr i64, ptr %arg.heap, i64 %.35.i455
  %.79.i464 = load i64, ptr %.78.i463, align 8
  %.82.i465 = getelementptr i64, ptr %arg.heap, i64 %at.2.1.i453
  store i64 %.79.i464, ptr %.82.i465, align 8
  %.91.not.i466 = icmp eq i64 %.35.i455, 0
  br i1 %.91.not.i466, label %after6, label %B12.i452
after6:
  %at.3.0.i467 = phi i64 [ 0, %B1882 ], [ 0, %B102.i461 ], [ %at.2.1.i453, %B76.i471 ], [ %at.2.1.i453, %B12.i452 ]
  %.103.i468 = getelementptr double, ptr %arg.heap_s, i64 %at.3.0.i467
  store double %.529, ptr %.103.i468, align 8
  %.112.i469 = getelementptr i64, ptr %arg.heap, i64 %at.3.0.i467
  store i64 %.1607, ptr %.112.i469, align 8
  %.121.i470 = add nsw i64 %size.13.2509, 1
  br label %B1920
B1920:
  %size.14.3 = phi i64 [ %.121.i470, %after6 ], [ %size.13.2509, %B1780.if ]
  %.1561 = icmp sgt i64 %.1505.0508, 1
  br i1 %.1561, label %B1780.if, label %B1922
B1922:
  %size.11.1 = phi i64 [ %size.10.0, %after2 ], [ %size.10.0, %after4 ], [ %size.10.0, %after5 ], [ %.121.i393, %after3 ], [ %size.10.0, %B654 ], [ %.11.i, %B1474 ], [ %size.14.3, %B1920 ]
  %.1707.not = icmp eq i64 %size.11.1, 0
  br i1 %.1707.not, label %common.ret, label %B238
common.ret:
  ret i32 0
B34.if:
  %.88.0497 = phi i64 [ %.159, %B34.if ], [ 0, %entry ]
  %.159 = add nuw nsw i64 %.88.0497, 1
  %.185 = getelementptr double, ptr %arg.finish_s, i64 %.88.0497
  %.186 = load double, ptr %.185, align 8
  %.188 = getelementptr double, ptr %arg.came_s, i64 %.88.0497
  store double %.186, ptr %.188, align 8
  %exitcond.not = icmp eq i64 %arg.num_ranks, %.159
  br i1 %exitcond.not, label %B62, label %B34.if
B142.if:
  %size.8.0505 = phi i64 [ %size.9.1, %B230 ], [ 0, %B108 ]
  %.350.0503 = phi i64 [ %.419, %B230 ], [ 0, %B108 ]
  %.419 = add nuw nsw i64 %.350.0503, 1
  %.453 = getelementptr i64, ptr %arg.waits, i64 %.350.0503
  %.454 = load i64, ptr %.453, align 8
  %.457 = getelementptr i64, ptr %arg.left, i64 %.350.0503
  store i64 %.454, ptr %.457, align 8
  %.463 = icmp eq i64 %.454, 0
  br i1 %.463, label %B192, label %B230
8:
  %9 = trunc nuw i64 %.535 to i32
  %10 = urem i32 %9, %1
  %11 = zext i32 %10 to i64
  br label %B238.endif.endif.endif
12:
  %13 = srem i64 %.535, %arg.num_messages
  br label %B238.endif.endif.endif
B238.endif.endif.endif:
  %14 = phi i64 [ %11, %8 ], [ %13, %12 ]
  %.618 = xor i64 %14, %arg.num_messages
  %.619 = icmp slt i64 %.618, 0
  %.628 = select i1 %.619, i64 %arg.num_messages, i64 0
  %spec.select = add i64 %.628, %14
  %.643 = icmp slt i64 %.535, %arg.num_messages
  br i1 %.643, label %B378, label %B752
B804.if:
  %now_s.2.2519 = phi double [ %.529, %B804.if.lr.ph ], [ %.13.i477, %B804.if ]
  %.883.0518 = phi i64 [ %.1147, %B804.if.lr.ph ], [ %.945, %B804.if ]
  %.880.0517 = phi i64 [ 0, %B804.if.lr.ph ], [ %.949, %B804.if ]
  %.945 = add nsw i64 %.883.0518, -1
  %.949 = add nuw i64 %.880.0517, 2
  %.979 = getelementptr i64, ptr %6, i64 %.880.0517
  %.980 = load i64, ptr %.979, align 8
  %.982 = getelementptr double, ptr %arg.free_s, i64 %.980
  %.983 = load double, ptr %.982, align 8
  %.12.i476 = fcmp ogt double %.983, %now_s.2.2519
  %.13.i477 = select i1 %.12.i476, double %.983, double %now_s.2.2519
  %.1018 = load double, ptr %.1017, align 8
  %.1020 = getelementptr double, ptr %arg.capacity, i64 %.980
  %.1021 = load double, ptr %.1020, align 8
  %.1025 = fdiv double %.1018, %.1021
  %.1026 = fadd double %.13.i477, %.1025
  store double %.1026, ptr %.982, align 8
  %.936 = icmp sgt i64 %.883.0518, 1
  br i1 %.936, label %B804.if, label %B954
B1064.if:
  %.1256 = phi double [ %.1256.pre, %B1064.if.lr.ph ], [ %.1274, %B1064.if ]
  %ends_s.2.2514 = phi double [ %.529, %B1064.if.lr.ph ], [ %.19.i483, %B1064.if ]
  %.1115.0513 = phi i64 [ %.1147, %B1064.if.lr.ph ], [ %.1177, %B1064.if ]
  %.1112.0512 = phi i64 [ 0, %B1064.if.lr.ph ], [ %.1181, %B1064.if ]
  %.1177 = add nsw i64 %.1115.0513, -1
  %.1181 = add nuw i64 %.1112.0512, 2
  %.1211 = getelementptr i64, ptr %7, i64 %.1112.0512
  %.1212 = load i64, ptr %.1211, align 8
  %.1219 = getelementptr i8, ptr %.1211, i64 8
  %.1220 = load i64, ptr %.1219, align 8
  %.1222 = getelementptr double, ptr %arg.free_s, i64 %.1220
  %.1223 = load double, ptr %.1222, align 8
  %.12.i478 = fcmp ogt double %.1223, %.529
  %.13.i479 = select i1 %.12.i478, double %.1223, double %.529
  %.1258 = getelementptr double, ptr %arg.capacity, i64 %.1220
  %.1259 = load double, ptr %.1258, align 8
  %.1263 = fdiv double %.1256, %.1259
  %.1264 = fadd double %.13.i479, %.1263
  store double %.1264, ptr %.1222, align 8
  %.1274 = load double, ptr %.1255, align 8
  %.1276 = getelementptr double, ptr %arg.capacity, i64 %.1212
  %.1277 = load double, ptr %.1276, align 8
  %.1281 = fdiv double %.1274, %.1277
  %.1283 = fadd double %.529, %.1281
  %.16.i480 = fcmp ogt double %.1264, %ends_s.2.2514
  %.17.i481 = select i1 %.16.i480, double %.1264, double %ends_s.2.2514
  %.18.i482 = fcmp ogt double %.1283, %.17.i481
  %.19.i483 = select i1 %.18.i482, double %.1283, double %.17.i481
  %.1168 = icmp sgt i64 %.1115.0513, 1
  br i1 %.1168, label %B1064.if, label %B1378
B1780.if:
  %size.13.2509 = phi i64 [ %size.14.3, %B1920 ], [ %.11.i, %B1474 ]
  %.1505.0508 = phi i64 [ %.1570, %B1920 ], [ %.1515, %B1474 ]
  %.1502.0507 = phi i64 [ %.1574, %B1920 ], [ %.1471, %B1474 ]
  %.1570 = add nsw i64 %.1505.0508, -1
  %.1574 = add i64 %.1502.0507, 1
  %.1606 = getelementptr i64, ptr %arg.followers, i64 %.1502.0507
  %.1607 = load i64, ptr %.1606, align 8
  %.1637 = getelementptr i64, ptr %arg.left, i64 %.1607
  %.1638 = load i64, ptr %.1637, align 8
  %.1639 = add nsw i64 %.1638, -1
  store i64 %.1639, ptr %.1637, align 8
  %.1648 = icmp eq i64 %.1639, 0
  br i1 %.1648, label %B1882, label %B1920
}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1 immarg)
