; numba 0.68.1, llvmlite 0.50.0
; run_events, sha256 337e1941493e926c58a1d7640e48bf8a957d77957d959a011b6e535eb77d14ed
define i32 @kernel(i64 %arg.num_ranks, i64 %arg.num_turns, i64 %arg.num_links, i64 %arg.columns, double %arg.gamma_s, ptr %arg.nbytes, ptr %arg.start_s, ptr %arg.links, ptr %arg.capacity, ptr %arg.of_src, ptr %arg.of_dst, ptr %arg.first, ptr %arg.rank_of, ptr %arg.is_last, ptr %arg.added, ptr %arg.starts, ptr %arg.message_of, ptr %arg.absent, ptr %arg.missing, ptr %arg.heap_s, ptr %arg.heap, ptr %arg.active, ptr %arg.left, ptr %arg.rate, ptr %arg.waiting, ptr %arg.spare, ptr %arg.least, ptr %arg.users, ptr %arg.finish_s) {
entry:
  %.173476.not = icmp slt i64 %arg.num_ranks, 1
  br i1 %.173476.not, label %common.ret, label %B38.if
B194.preheader:
  %.339.not506 = icmp eq i64 %size.6.1, 0
  br i1 %.339.not506, label %common.ret, label %B204.preheader.lr.ph
B204.preheader.lr.ph:
  %spec.select492.i = tail call i64 @llvm.smax.i64(i64 %arg.num_links, i64 0)
  %.250512.not.i = icmp slt i64 %arg.num_links, 1
  %.639518.not.i = icmp slt i64 %arg.columns, 1
  %0 = shl nuw i64 %spec.select492.i, 3
  br label %B204
B66:
  %.228 = getelementptr double, ptr %arg.finish_s, i64 %.115.0478
  %.229 = load double, ptr %.228, align 8
  %.26.not.i = icmp eq i64 %size.5.0479, 0
  br i1 %.26.not.i, label %after0, label %B12.i
B12.i:
  %at.2.1.i = phi i64 [ %.35.i, %B102.i ], [ %size.5.0479, %B66 ]
  %.34.i = add nsw i64 %at.2.1.i, -1
  %.35.i = ashr i64 %.34.i, 1
  %.41.i = getelementptr double, ptr %arg.heap_s, i64 %.35.i
  %.42.i = load double, ptr %.41.i, align 8
  %.44.i = fcmp olt double %.42.i, %.229
  br i1 %.44.i, label %after0, label %B52.i
B52.i:
  %.51.i = fcmp oeq double %.42.i, %.229
  br i1 %.51.i, label %B76.i, label %B102.i
B76.i:
  %.55.i = getelementptr i64, ptr %arg.heap, i64 %.35.i
  %.56.i = load i64, ptr %.55.i, align 8
  %.58.i = icmp slt i64 %.56.i, %.221
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
  %at.3.0.i = phi i64 [ 0, %B66 ], [ 0, %B102.i ], [ %at.2.1.i, %B76.i ], [ %at.2.1.i, %B12.i ]
  %.103.i = getelementptr double, ptr %arg.heap_s, i64 %at.3.0.i
  store double %.229, ptr %.103.i, align 8
  %.112.i = getelementptr i64, ptr %arg.heap, i64 %at.3.0.i
  store i64 %.221, ptr %.112.i, align 8
  %.121.i = add nsw i64 %size.5.0479, 1
  br label %B180
B180:
  %size.6.1 = phi i64 [ %.121.i, %after0 ], [ %size.5.0479, %B38.if ]
  %exitcond.not = icmp eq i64 %arg.num_ranks, %.186
  br i1 %exitcond.not, label %B194.preheader, label %B38.if
B204:
  %size.10.2 = phi i64 [ %size.6.1, %B204.preheader.lr.ph ], [ %size.10.2.be, %B204.backedge ]
  %flowing.5.2 = phi i64 [ 0, %B204.preheader.lr.ph ], [ %flowing.5.2.be, %B204.backedge ]
  %now_s.3.2 = phi double [ 0.000000e+00, %B204.preheader.lr.ph ], [ %now_s.3.2.be, %B204.backedge ]
  %stale.4.2 = phi i1 [ false, %B204.preheader.lr.ph ], [ %stale.4.2.be, %B204.backedge ]
  br i1 %stale.4.2, label %B208, label %B262
B208:
  %.119509.not.i = icmp slt i64 %flowing.5.2, 1
  br i1 %.119509.not.i, label %B62.i, label %B34.if.i
B62.i:
  br i1 %.250512.not.i, label %B120.i, label %B92.if.i
B120.i:
  %.307.not.i = icmp eq i64 %flowing.5.2, 0
  br i1 %.307.not.i, label %B448, label %B130.i
B130.i:
  %unfixed.2.0.i = phi i64 [ %kept.3.2.i, %B1126.i ], [ %flowing.5.2, %B120.i ]
  br i1 %.250512.not.i, label %B176.i, label %B160.if.preheader.i
B160.if.preheader.i:
  tail call void @llvm.memset.p0.i64(ptr align 8 %arg.users, i8 0, i64 %0, i1 false)
  br label %B176.i
B176.i:
  %spec.select494.i = tail call i64 @llvm.smax.i64(i64 %unfixed.2.0.i, i64 0)
  %.518521.not.i = icmp eq i64 %spec.select494.i, 0
  br i1 %.518521.not.i, label %B346.preheader.i, label %B206.if.i
B206.loopexit.i:
  %exitcond552.not.i = icmp eq i64 %unfixed.2.0.i, %.531.i
  br i1 %exitcond552.not.i, label %B346.preheader.i, label %B206.if.i
B346.preheader.i:
  br i1 %.250512.not.i, label %B438.preheader.i, label %B346.if.i
B438.preheader.i:
  br i1 %.518521.not.i, label %B262, label %B438.if.i
B366.i:
  %.835.i = getelementptr double, ptr %arg.spare, i64 %.730.0525.i
  %.836.i = load double, ptr %.835.i, align 8
  %.841.i = sitofp i64 %.830.i to double
  %.845.i = fdiv double %.836.i, %.841.i
  %.848.i = getelementptr double, ptr %arg.least, i64 %.730.0525.i
  store double %.845.i, ptr %.848.i, align 8
  br label %B406.i
B406.i:
  %exitcond553.not.i = icmp eq i64 %arg.num_links, %.799.i
  br i1 %exitcond553.not.i, label %B438.preheader.i, label %B346.if.i
B438.loopexit.i:
  %exitcond556.not.i = icmp eq i64 %unfixed.2.0.i, %.953.i
  br i1 %exitcond556.not.i, label %B740.if.i, label %B438.if.i
B616.if.lr.ph.i:
  %.1154.i = getelementptr double, ptr %arg.rate, i64 %.980.i
  store double %.13.i506.i, ptr %.1154.i, align 8
  br label %B616.if.i
B668.i:
  %.1302.i = getelementptr i64, ptr %arg.users, i64 %.1284.i
  store i64 0, ptr %.1302.i, align 8
  br label %B702.i
B702.i:
  %exitcond555.not.i = icmp eq i64 %arg.columns, %.1249.i
  br i1 %exitcond555.not.i, label %B438.loopexit.i, label %B616.if.i
B846.i:
  %.1598.i = getelementptr i64, ptr %arg.users, i64 %.1584.i
  %.1599.i = load i64, ptr %.1598.i, align 8
  %.1600.i = icmp sgt i64 %.1599.i, 0
  br i1 %.1600.i, label %B892.i, label %B892.thread.i
B892.i:
  %.1606.i = getelementptr double, ptr %arg.least, i64 %.1584.i
  %.1607.i = load double, ptr %.1606.i, align 8
  %.1611.i = fcmp oeq double %.1607.i, %.1453.i
  %exitcond557.not.i = icmp eq i64 %arg.columns, %.1553.i
  br i1 %exitcond557.not.i, label %B896.i, label %B810.if.i.backedge
B892.i.thread:
  %exitcond557.not.i458 = icmp eq i64 %arg.columns, %.1553.i
  br i1 %exitcond557.not.i458, label %B1000.if.lr.ph.i, label %B810.if.i.backedge
B810.if.i.backedge:
  %fixed.2.2540.i.be = phi i1 [ %.1611.i, %B892.i ], [ false, %B892.thread.i ], [ true, %B892.i.thread ]
  br label %B810.if.i
B892.thread.i:
  %exitcond557.not563.i = icmp eq i64 %arg.columns, %.1553.i
  br i1 %exitcond557.not563.i, label %B900.i, label %B810.if.i.backedge
B896.i:
  br i1 %.1611.i, label %B1000.if.lr.ph.i, label %B900.i
B900.i:
  %.1636.i = getelementptr i64, ptr %arg.waiting, i64 %kept.2.1548.i
  store i64 %.1446.i, ptr %.1636.i, align 8
  %.1641.i = add nsw i64 %kept.2.1548.i, 1
  br label %B1141.i
B1000.if.lr.ph.i:
  %.12.i.i = fcmp ogt double %.1453.i, 1.000000e+30
  %.13.i.i = select i1 %.12.i.i, double 1.000000e+30, double %.1453.i
  store double %.13.i.i, ptr %.1452.i, align 8
  br label %B1000.if.i
B1066.i:
  %.1820.i = fsub double %.1812.i, %.1453.i
  %.12.i503.i = fcmp olt double %.1820.i, 0.000000e+00
  %.13.i504.i = select i1 %.12.i503.i, double 0.000000e+00, double %.1820.i
  store double %.13.i504.i, ptr %.1811.i, align 8
  br label %B1122.i
B1122.i:
  %exitcond558.not.i = icmp eq i64 %arg.columns, %.1774.i
  br i1 %exitcond558.not.i, label %B1141.i, label %B1000.if.i
B1126.i:
  %.1882.not.i = icmp eq i64 %kept.3.2.i, 0
  br i1 %.1882.not.i, label %B262, label %B130.i
B1141.i:
  %kept.3.2.i = phi i64 [ %.1641.i, %B900.i ], [ %kept.2.1548.i, %B1122.i ]
  %exitcond559.not.i = icmp eq i64 %unfixed.2.0.i, %.1419.i
  br i1 %exitcond559.not.i, label %B1126.i, label %B740.if.i
B34.if.i:
  %.61.0511.i = phi i64 [ %.132.i, %B34.if.i ], [ 0, %B208 ]
  %.132.i = add nuw nsw i64 %.61.0511.i, 1
  %.158.i = getelementptr i64, ptr %arg.active, i64 %.61.0511.i
  %.159.i = load i64, ptr %.158.i, align 8
  %.161.i = getelementptr i64, ptr %arg.waiting, i64 %.61.0511.i
  store i64 %.159.i, ptr %.161.i, align 8
  %exitcond.not.i = icmp eq i64 %flowing.5.2, %.132.i
  br i1 %exitcond.not.i, label %B62.i, label %B34.if.i
B92.if.i:
  %.194.0514.i = phi i64 [ %.263.i, %B92.if.i ], [ 0, %B62.i ]
  %.263.i = add nuw nsw i64 %.194.0514.i, 1
  %.289.i = getelementptr double, ptr %arg.capacity, i64 %.194.0514.i
  %.290.i = load double, ptr %.289.i, align 8
  %.292.i = getelementptr double, ptr %arg.spare, i64 %.194.0514.i
  store double %.290.i, ptr %.292.i, align 8
  %exitcond550.not.i = icmp eq i64 %arg.num_links, %.263.i
  br i1 %exitcond550.not.i, label %B120.i, label %B92.if.i
B206.if.i:
  %.462.0522.i = phi i64 [ %.531.i, %B206.loopexit.i ], [ 0, %B176.i ]
  %.531.i = add nuw nsw i64 %.462.0522.i, 1
  br i1 %.639518.not.i, label %B206.loopexit.i, label %B240.if.lr.ph.i
B240.if.lr.ph.i:
  %.679.i = getelementptr i64, ptr %arg.waiting, i64 %.462.0522.i
  br label %B240.if.i
B240.if.i:
  %.583.0519.i = phi i64 [ 0, %B240.if.lr.ph.i ], [ %.652.i, %B240.if.i ]
  %.652.i = add nuw nsw i64 %.583.0519.i, 1
  %.680.i = load i64, ptr %.679.i, align 8
  %.682.i = mul nsw i64 %.680.i, %arg.columns
  %1 = getelementptr i64, ptr %arg.links, i64 %.682.i
  %.685.i = getelementptr i64, ptr %1, i64 %.583.0519.i
  %.686.i = load i64, ptr %.685.i, align 8
  %.688.i = getelementptr i64, ptr %arg.users, i64 %.686.i
  %.689.i = load i64, ptr %.688.i, align 8
  %.690.i = add nsw i64 %.689.i, 1
  store i64 %.690.i, ptr %.688.i, align 8
  %exitcond551.not.i = icmp eq i64 %arg.columns, %.652.i
  br i1 %exitcond551.not.i, label %B206.loopexit.i, label %B240.if.i
B346.if.i:
  %.730.0525.i = phi i64 [ %.799.i, %B406.i ], [ 0, %B346.preheader.i ]
  %.799.i = add nuw nsw i64 %.730.0525.i, 1
  %.829.i = getelementptr i64, ptr %arg.users, i64 %.730.0525.i
  %.830.i = load i64, ptr %.829.i, align 8
  %.831.not.i = icmp eq i64 %.830.i, 0
  br i1 %.831.not.i, label %B406.i, label %B366.i
B438.if.i:
  %.884.0535.i = phi i64 [ %.953.i, %B438.loopexit.i ], [ 0, %B438.preheader.i ]
  %.953.i = add nuw nsw i64 %.884.0535.i, 1
  %.979.i = getelementptr i64, ptr %arg.waiting, i64 %.884.0535.i
  %.980.i = load i64, ptr %.979.i, align 8
  br i1 %.639518.not.i, label %B576.thread.i, label %B502.if.lr.ph.i
B576.thread.i:
  %.1154561.i = getelementptr double, ptr %arg.rate, i64 %.980.i
  store double 0x7FF0000000000000, ptr %.1154561.i, align 8
  br label %B438.loopexit.i
B502.if.lr.ph.i:
  %.1107.i = mul nsw i64 %.980.i, %arg.columns
  %2 = getelementptr i64, ptr %arg.links, i64 %.1107.i
  br label %B502.if.i
B502.if.i:
  %its.3.2530.i = phi double [ 0x7FF0000000000000, %B502.if.lr.ph.i ], [ %.13.i506.i, %B502.if.i ]
  %.1011.0528.i = phi i64 [ 0, %B502.if.lr.ph.i ], [ %.1080.i, %B502.if.i ]
  %.1080.i = add nuw nsw i64 %.1011.0528.i, 1
  %.1110.i = getelementptr i64, ptr %2, i64 %.1011.0528.i
  %.1111.i = load i64, ptr %.1110.i, align 8
  %.1113.i = getelementptr double, ptr %arg.least, i64 %.1111.i
  %.1114.i = load double, ptr %.1113.i, align 8
  %.12.i505.i = fcmp olt double %.1114.i, %its.3.2530.i
  %.13.i506.i = select i1 %.12.i505.i, double %.1114.i, double %its.3.2530.i
  %exitcond554.not.i = icmp eq i64 %arg.columns, %.1080.i
  br i1 %exitcond554.not.i, label %B616.if.lr.ph.i, label %B502.if.i
B616.if.i:
  %.1180.0532.i = phi i64 [ 0, %B616.if.lr.ph.i ], [ %.1249.i, %B702.i ]
  %.1249.i = add nuw nsw i64 %.1180.0532.i, 1
  %.1283.i = getelementptr i64, ptr %2, i64 %.1180.0532.i
  %.1284.i = load i64, ptr %.1283.i, align 8
  %.1286.i = getelementptr double, ptr %arg.least, i64 %.1284.i
  %.1287.i = load double, ptr %.1286.i, align 8
  %.1289.i = fcmp ogt double %.1287.i, %.13.i506.i
  br i1 %.1289.i, label %B668.i, label %B702.i
B740.if.i:
  %kept.2.1548.i = phi i64 [ %kept.3.2.i, %B1141.i ], [ 0, %B438.loopexit.i ]
  %.1350.0546.i = phi i64 [ %.1419.i, %B1141.i ], [ 0, %B438.loopexit.i ]
  %.1419.i = add nuw nsw i64 %.1350.0546.i, 1
  %.1445.i = getelementptr i64, ptr %arg.waiting, i64 %.1350.0546.i
  %.1446.i = load i64, ptr %.1445.i, align 8
  %.1452.i = getelementptr double, ptr %arg.rate, i64 %.1446.i
  %.1453.i = load double, ptr %.1452.i, align 8
  br i1 %.639518.not.i, label %B900.i, label %B810.if.lr.ph.i
B810.if.lr.ph.i:
  %.1580.i = mul nsw i64 %.1446.i, %arg.columns
  %3 = getelementptr i64, ptr %arg.links, i64 %.1580.i
  br label %B810.if.i
B810.if.i:
  %fixed.2.2540.i = phi i1 [ false, %B810.if.lr.ph.i ], [ %fixed.2.2540.i.be, %B810.if.i.backedge ]
  %.1484.0538.i = phi i64 [ 0, %B810.if.lr.ph.i ], [ %.1553.i, %B810.if.i.backedge ]
  %.1553.i = add nuw nsw i64 %.1484.0538.i, 1
  %.1583.i = getelementptr i64, ptr %3, i64 %.1484.0538.i
  %.1584.i = load i64, ptr %.1583.i, align 8
  br i1 %fixed.2.2540.i, label %B892.i.thread, label %B846.i
B1000.if.i:
  %.1705.0543.i = phi i64 [ 0, %B1000.if.lr.ph.i ], [ %.1774.i, %B1122.i ]
  %.1774.i = add nuw nsw i64 %.1705.0543.i, 1
  %.1804.i = getelementptr i64, ptr %3, i64 %.1705.0543.i
  %.1805.i = load i64, ptr %.1804.i, align 8
  %.1811.i = getelementptr double, ptr %arg.spare, i64 %.1805.i
  %.1812.i = load double, ptr %.1811.i, align 8
  %.1813.i = fcmp ueq double %.1812.i, 0x7FF0000000000000
  br i1 %.1813.i, label %B1122.i, label %B1066.i
B262:
  %.502480.not = icmp slt i64 %flowing.5.2, 1
  br i1 %.502480.not, label %B448, label %B306.if
B448:
  %.502480.not529 = phi i1 [ true, %B262 ], [ true, %B120.i ], [ false, %B306.if ]
  %least_s.2.2.lcssa = phi double [ 0x7FF0000000000000, %B262 ], [ 0x7FF0000000000000, %B120.i ], [ %.13.i454, %B306.if ]
  %.618.not = icmp eq i64 %size.10.2, 0
  br i1 %.618.not, label %B448.B1118_crit_edge, label %B454
B448.B1118_crit_edge:
  %.pre = fadd double %now_s.3.2, %least_s.2.2.lcssa
  br label %B1118
B454:
  %.622 = load double, ptr %arg.heap_s, align 8
  %.625 = fadd double %now_s.3.2, %least_s.2.2.lcssa
  %.626 = fcmp ugt double %.622, %.625
  br i1 %.626, label %B1118, label %B558.preheader
B558.preheader:
  br i1 %.502480.not529, label %B640.preheader, label %B558.if.lr.ph
B558.if.lr.ph:
  %.765 = fsub double %.622, %now_s.3.2
  br label %B558.if
B640.preheader:
  %.823 = fmul double %.622, 0x3FF0000000001198
  br label %B644
B644:
  %stale.6.1505 = phi i1 [ false, %B640.preheader ], [ true, %B752 ]
  %flowing.4.1504 = phi i64 [ %flowing.5.2, %B640.preheader ], [ %.901, %B752 ]
  %size.9.1503 = phi i64 [ %size.10.2, %B640.preheader ], [ %.11.i, %B752 ]
  %.819 = load double, ptr %arg.heap_s, align 8
  %.824 = fcmp ugt double %.819, %.823
  br i1 %.824, label %B1114, label %B690
B690:
  %size.18.3 = phi i64 [ %size.16.4.lcssa, %B1068 ], [ %size.9.1503, %B644 ]
  %.833 = load i64, ptr %arg.heap, align 8
  %.11.i = add nsw i64 %size.18.3, -1
  %.17.i = getelementptr double, ptr %arg.heap_s, i64 %.11.i
  %.18.i = load double, ptr %.17.i, align 8
  %.24.i = getelementptr i64, ptr %arg.heap, i64 %.11.i
  %.25.i = load i64, ptr %.24.i, align 8
  %.38.i = icmp sgt i64 %size.18.3, 2
  br i1 %.38.i, label %B74.i, label %after1
B74.i:
  %at.2.1.i397 = phi i64 [ %child.2.1.i, %B298.i ], [ 0, %B690 ]
  %.46.i = shl nsw i64 %at.2.1.i397, 1
  %.47.i = or disjoint i64 %.46.i, 1
  %.56.i398 = add nsw i64 %.46.i, 2
  %.62.i = icmp slt i64 %.56.i398, %.11.i
  br i1 %.62.i, label %B112.i, label %B224.i
B112.i:
  %.68.i = getelementptr double, ptr %arg.heap_s, i64 %.56.i398
  %.69.i = load double, ptr %.68.i, align 8
  %.72.i = getelementptr double, ptr %arg.heap_s, i64 %.47.i
  %.73.i = load double, ptr %.72.i, align 8
  %.74.i402 = fcmp olt double %.69.i, %.73.i
  br i1 %.74.i402, label %B220.i, label %B148.i
B148.i:
  %.87.i = fcmp oeq double %.69.i, %.73.i
  br i1 %.87.i, label %B184.i, label %B224.i
B184.i:
  %.94.i = getelementptr i64, ptr %arg.heap, i64 %.56.i398
  %.95.i = load i64, ptr %.94.i, align 8
  %.98.i = getelementptr i64, ptr %arg.heap, i64 %.47.i
  %.99.i = load i64, ptr %.98.i, align 8
  %.102.i = icmp slt i64 %.95.i, %.99.i
  br i1 %.102.i, label %B220.i, label %B224.i
B220.i:
  br label %B224.i
B224.i:
  %child.2.1.i = phi i64 [ %.56.i398, %B220.i ], [ %.47.i, %B184.i ], [ %.47.i, %B148.i ], [ %.47.i, %B74.i ]
  %.118.i = getelementptr double, ptr %arg.heap_s, i64 %child.2.1.i
  %.119.i = load double, ptr %.118.i, align 8
  %.121.i399 = fcmp ogt double %.119.i, %.18.i
  br i1 %.121.i399, label %after1, label %B248.i
B248.i:
  %.128.i = fcmp oeq double %.119.i, %.18.i
  br i1 %.128.i, label %B272.i, label %B298.i
B272.i:
  %.132.i401 = getelementptr i64, ptr %arg.heap, i64 %child.2.1.i
  %.133.i = load i64, ptr %.132.i401, align 8
  %.135.i = icmp sgt i64 %.133.i, %.25.i
  br i1 %.135.i, label %after1, label %B298.i
B298.i:
  %.151.i = getelementptr double, ptr %arg.heap_s, i64 %at.2.1.i397
  store double %.119.i, ptr %.151.i, align 8
  %.155.i = getelementptr i64, ptr %arg.heap, i64 %child.2.1.i
  %.156.i = load i64, ptr %.155.i, align 8
  %.159.i400 = getelementptr i64, ptr %arg.heap, i64 %at.2.1.i397
  store i64 %.156.i, ptr %.159.i400, align 8
  %.168.i = shl nsw i64 %child.2.1.i, 1
  %.169.i = or disjoint i64 %.168.i, 1
  %.171.i = icmp slt i64 %.169.i, %.11.i
  br i1 %.171.i, label %B74.i, label %after1
after1:
  %at.3.0.i396 = phi i64 [ 0, %B690 ], [ %child.2.1.i, %B298.i ], [ %at.2.1.i397, %B272.i ], [ %at.2.1.i397, %B224.i ]
  %.183.i = getelementptr double, ptr %arg.heap_s, i64 %at.3.0.i396
  store double %.18.i, ptr %.183.i, align 8
  %.192.i = getelementptr i64, ptr %arg.heap, i64 %at.3.0.i396
  store i64 %.25.i, ptr %.192.i, align 8
  %.872.not = icmp slt i64 %.833, %arg.num_turns
  br i1 %.872.not, label %B818, label %B752
B752:
  %.881 = sub nsw i64 %.833, %arg.num_turns
  %.884 = getelementptr i64, ptr %arg.active, i64 %flowing.4.1504
  store i64 %.881, ptr %.884, align 8
  %.890 = getelementptr double, ptr %arg.nbytes, i64 %.881
  %.891 = load double, ptr %.890, align 8
  %.898 = getelementptr double, ptr %arg.left, i64 %.881
  store double %.891, ptr %.898, align 8
  %.901 = add nsw i64 %flowing.4.1504, 1
  %.806.not = icmp eq i64 %.11.i, 0
  br i1 %.806.not, label %B1114, label %B644
B818:
  %.915 = getelementptr i64, ptr %arg.starts, i64 %.833
  %.916 = load i64, ptr %.915, align 8
  %.922 = getelementptr i8, ptr %.915, i64 8
  %.923 = load i64, ptr %.922, align 8
  %.960 = sub i64 %.923, %.916
  %.1003498.not = icmp slt i64 %.960, 1
  br i1 %.1003498.not, label %B1064, label %B880.if
B974:
  %.1093 = getelementptr double, ptr %arg.start_s, i64 %.1047
  %.1094 = load double, ptr %.1093, align 8
  %.1096 = fadd double %.622, %.1094
  %.1099 = add nsw i64 %.1047, %arg.num_turns
  %.26.not.i403 = icmp eq i64 %size.16.4501, 0
  br i1 %.26.not.i403, label %after2, label %B12.i404
B12.i404:
  %at.2.1.i405 = phi i64 [ %.35.i407, %B102.i413 ], [ %size.16.4501, %B974 ]
  %.34.i406 = add nsw i64 %at.2.1.i405, -1
  %.35.i407 = ashr i64 %.34.i406, 1
  %.41.i408 = getelementptr double, ptr %arg.heap_s, i64 %.35.i407
  %.42.i409 = load double, ptr %.41.i408, align 8
  %.44.i410 = fcmp olt double %.42.i409, %.1096
  br i1 %.44.i410, label %after2, label %B52.i411
B52.i411:
  %.51.i412 = fcmp oeq double %.42.i409, %.1096
  br i1 %.51.i412, label %B76.i423, label %B102.i413
B76.i423:
  %.55.i424 = getelementptr i64, ptr %arg.heap, i64 %.35.i407
  %.56.i425 = load i64, ptr %.55.i424, align 8
  %.58.i426 = icmp slt i64 %.56.i425, %.1099
  br i1 %.58.i426, label %after2, label %B102.i413
B102.i413:
  %.74.i414 = getelementptr double, ptr %arg.heap_s, i64 %at.2.1.i405
  store double %.42.i409, ptr %.74.i414, align 8
  %.78.i415 = getelementptr i64, ptr %arg.heap, i64 %.35.i407
  %.79.i416 = load i64, ptr %.78.i415, align 8
  %.82.i417 = getelementptr i64, ptr %arg.heap, i64 %at.2.1.i405
  store i64 %.79.i416, ptr %.82.i417, align 8
  %.91.not.i418 = icmp eq i64 %.35.i407, 0
  br i1 %.91.not.i418, label %after2, label %B12.i404
after2:
  %at.3.0.i419 = phi i64 [ 0, %B974 ], [ 0, %B102.i413 ], [ %at.2.1.i405, %B76.i423 ], [ %at.2.1.i405, %B12.i404 ]
  %.103.i420 = getelementptr double, ptr %arg.heap_s, i64 %at.3.0.i419
  store double %.1096, ptr %.103.i420, align 8
  %.112.i421 = getelementptr i64, ptr %arg.heap, i64 %at.3.0.i419
  store i64 %.1099, ptr %.112.i421, align 8
  %.121.i422 = add nsw i64 %size.16.4501, 1
  br label %B1062
B1062:
  %size.17.5 = phi i64 [ %size.16.4501, %B880.if ], [ %.121.i422, %after2 ]
  %.1003 = icmp sgt i64 %.950.0500, 1
  br i1 %.1003, label %B880.if, label %B1064
B1064:
  %size.16.4.lcssa = phi i64 [ %.11.i, %B818 ], [ %size.17.5, %B1062 ]
  %.1150.not = icmp eq i64 %size.16.4.lcssa, 0
  br i1 %.1150.not, label %B1114, label %B1068
B1068:
  %.1162 = load double, ptr %arg.heap_s, align 8
  %.1167 = fcmp ugt double %.1162, %.823
  br i1 %.1167, label %B1114, label %B690
B1114:
  %flowing.4.1475 = phi i64 [ %flowing.4.1504, %B1068 ], [ %flowing.4.1504, %B1064 ], [ %.901, %B752 ], [ %flowing.4.1504, %B644 ]
  %stale.6.1473 = phi i1 [ %stale.6.1505, %B1068 ], [ %stale.6.1505, %B1064 ], [ true, %B752 ], [ %stale.6.1505, %B644 ]
  %size.8.2 = phi i64 [ %size.16.4.lcssa, %B1068 ], [ 0, %B1064 ], [ 0, %B752 ], [ %size.9.1503, %B644 ]
  %.339.not = icmp eq i64 %size.8.2, 0
  %.360.not = icmp eq i64 %flowing.4.1475, 0
  %or.cond395 = select i1 %.339.not, i1 %.360.not, i1 false
  br i1 %or.cond395, label %common.ret, label %B204.backedge
B1118:
  %.1213.pre-phi = phi double [ %.pre, %B448.B1118_crit_edge ], [ %.625, %B454 ]
  br i1 %.502480.not529, label %B1696, label %B1164.if
B1386:
  %.1430 = getelementptr i64, ptr %arg.active, i64 %kept.2.2492
  store i64 %.1345, ptr %.1430, align 8
  %.1435 = add nsw i64 %kept.2.2492, 1
  br label %B1722
B1554:
  %.1647 = getelementptr double, ptr %arg.added, i64 %"$phi1488.4.2.5"
  %.1648 = load double, ptr %.1647, align 8
  %.1650 = fmul double %arg.gamma_s, %.1648
  %.1652 = fadd double %.1213.pre-phi, %.1650
  %.1658 = getelementptr i64, ptr %arg.rank_of, i64 %"$phi1488.4.2.5"
  %.1659 = load i64, ptr %.1658, align 8
  %.1662 = getelementptr double, ptr %arg.finish_s, i64 %.1659
  store double %.1652, ptr %.1662, align 8
  %.1666 = getelementptr i64, ptr %arg.is_last, i64 %"$phi1488.4.2.5"
  %.1667 = load i64, ptr %.1666, align 8
  %.1668.not = icmp eq i64 %.1667, 0
  br i1 %.1668.not, label %B1646, label %B1723
B1646:
  %.1672 = add nsw i64 %"$phi1488.4.2.5", 1
  %.26.not.i428 = icmp eq i64 %size.13.4487, 0
  br i1 %.26.not.i428, label %after3, label %B12.i429
B12.i429:
  %at.2.1.i430 = phi i64 [ %.35.i432, %B102.i438 ], [ %size.13.4487, %B1646 ]
  %.34.i431 = add nsw i64 %at.2.1.i430, -1
  %.35.i432 = ashr i64 %.34.i431, 1
  %.41.i433 = getelementptr double, ptr %arg.heap_s, i64 %.35.i432
  %.42.i434 = load double, ptr %.41.i433, align 8
  %.44.i435 = fcmp olt double %.42.i434, %.1652
  br i1 %.44.i435, label %after3, label %B52.i436
B52.i436:
  %.51.i437 = fcmp oeq double %.42.i434, %.1652
  br i1 %.51.i437, label %B76.i448, label %B102.i438
B76.i448:
  %.55.i449 = getelementptr i64, ptr %arg.heap, i64 %.35.i432
  %.56.i450 = load i64, ptr %.55.i449, align 8
  %.58.i451.not = icmp sgt i64 %.56.i450, %"$phi1488.4.2.5"
  br i1 %.58.i451.not, label %B102.i438, label %after3
B102.i438:
  %.74.i439 = getelementptr double, ptr %arg.heap_s, i64 %at.2.1.i430
  store double %.42.i434, ptr %.74.i439, align 8
  %.78.i440 = getelementptr i64, ptr %arg.heap, i64 %.35.i432
  %.79.i441 = load i64, ptr %.78.i440, align 8
  %.82.i442 = getelementptr i64, ptr %arg.heap, i64 %at.2.1.i430
  store i64 %.79.i441, ptr %.82.i442, align 8
  %.91.not.i443 = icmp eq i64 %.35.i432, 0
  br i1 %.91.not.i443, label %after3, label %B12.i429
after3:
  %at.3.0.i444 = phi i64 [ 0, %B1646 ], [ 0, %B102.i438 ], [ %at.2.1.i430, %B76.i448 ], [ %at.2.1.i430, %B12.i429 ]
  %.103.i445 = getelementptr double, ptr %arg.heap_s, i64 %at.3.0.i444
  store double %.1652, ptr %.103.i445, align 8
  %.112.i446 = getelementptr i64, ptr %arg.heap, i64 %at.3.0.i444
  store i64 %.1672, ptr %.112.i446, align 8
  %.121.i447 = add nsw i64 %size.13.4487, 1
  br label %B1723
B1696:
  %size.11.2.lcssa = phi i64 [ %size.10.2, %B1118 ], [ %size.12.3, %B1722 ]
  %kept.2.2.lcssa = phi i64 [ 0, %B1118 ], [ %kept.3.3, %B1722 ]
  %.1755 = icmp ne i64 %size.11.2.lcssa, 0
  %.1758 = icmp ne i64 %kept.2.2.lcssa, 0
  %or.cond = select i1 %.1755, i1 true, i1 %.1758
  br i1 %or.cond, label %B204.backedge, label %common.ret
B204.backedge:
  %size.10.2.be = phi i64 [ %size.11.2.lcssa, %B1696 ], [ %size.8.2, %B1114 ]
  %flowing.5.2.be = phi i64 [ %kept.2.2.lcssa, %B1696 ], [ %flowing.4.1475, %B1114 ]
  %now_s.3.2.be = phi double [ %.1213.pre-phi, %B1696 ], [ %.622, %B1114 ]
  %stale.4.2.be = phi i1 [ true, %B1696 ], [ %stale.6.1473, %B1114 ]
  br label %B204
common.ret:
  ret i32 0
B1722:
  %size.12.3 = phi i64 [ %size.11.2491, %B1386 ], [ %size.14.5, %B1723 ]
  %kept.3.3 = phi i64 [ %.1435, %B1386 ], [ %kept.2.2492, %B1723 ]
  %exitcond524.not = icmp eq i64 %flowing.5.2, %.1318
  br i1 %exitcond524.not, label %B1696, label %B1164.if
B1723:
  %size.14.5 = phi i64 [ %size.13.4487, %B1438.if ], [ %size.13.4487, %B1554 ], [ %.121.i447, %after3 ]
  br i1 %exitcond523.not, label %B1722, label %B1438.if
B38.if:
  %size.5.0479 = phi i64 [ %size.6.1, %B180 ], [ 0, %entry ]
  %.115.0478 = phi i64 [ %.186, %B180 ], [ 0, %entry ]
  %.186 = add nuw nsw i64 %.115.0478, 1
  %.220 = getelementptr i64, ptr %arg.first, i64 %.115.0478
  %.221 = load i64, ptr %.220, align 8
  %.223 = icmp slt i64 %.221, %arg.num_turns
  br i1 %.223, label %B66, label %B180
B306.if:
  %least_s.2.2483 = phi double [ %.13.i454, %B306.if ], [ 0x7FF0000000000000, %B262 ]
  %.446.0482 = phi i64 [ %.515, %B306.if ], [ 0, %B262 ]
  %.515 = add nuw nsw i64 %.446.0482, 1
  %.541 = getelementptr i64, ptr %arg.active, i64 %.446.0482
  %.542 = load i64, ptr %.541, align 8
  %.544 = getelementptr double, ptr %arg.left, i64 %.542
  %.545 = load double, ptr %.544, align 8
  %.12.i = fcmp olt double %.545, 0.000000e+00
  %.13.i = select i1 %.12.i, double 0.000000e+00, double %.545
  %.575 = getelementptr double, ptr %arg.rate, i64 %.542
  %.576 = load double, ptr %.575, align 8
  %.580 = fdiv double %.13.i, %.576
  %.12.i453 = fcmp olt double %.580, %least_s.2.2483
  %.13.i454 = select i1 %.12.i453, double %.580, double %least_s.2.2483
  %exitcond522.not = icmp eq i64 %flowing.5.2, %.515
  br i1 %exitcond522.not, label %B448, label %B306.if
B558.if:
  %.660.0496 = phi i64 [ 0, %B558.if.lr.ph ], [ %.729, %B558.if ]
  %.729 = add nuw nsw i64 %.660.0496, 1
  %.755 = getelementptr i64, ptr %arg.active, i64 %.660.0496
  %.756 = load i64, ptr %.755, align 8
  %.758 = getelementptr double, ptr %arg.left, i64 %.756
  %.759 = load double, ptr %.758, align 8
  %.761 = getelementptr double, ptr %arg.rate, i64 %.756
  %.762 = load double, ptr %.761, align 8
  %.766 = fmul double %.765, %.762
  %.767 = fsub double %.759, %.766
  store double %.767, ptr %.758, align 8
  %exitcond525.not = icmp eq i64 %flowing.5.2, %.729
  br i1 %exitcond525.not, label %B640.preheader, label %B558.if
B880.if:
  %size.16.4501 = phi i64 [ %size.17.5, %B1062 ], [ %.11.i, %B818 ]
  %.950.0500 = phi i64 [ %.1012, %B1062 ], [ %.960, %B818 ]
  %.947.0499 = phi i64 [ %.1016, %B1062 ], [ %.916, %B818 ]
  %.1012 = add nsw i64 %.950.0500, -1
  %.1016 = add i64 %.947.0499, 1
  %.1046 = getelementptr i64, ptr %arg.message_of, i64 %.947.0499
  %.1047 = load i64, ptr %.1046, align 8
  %.1077 = getelementptr i64, ptr %arg.absent, i64 %.1047
  %.1078 = load i64, ptr %.1077, align 8
  %.1079 = add nsw i64 %.1078, -1
  store i64 %.1079, ptr %.1077, align 8
  %.1088.not = icmp eq i64 %.1079, 0
  br i1 %.1088.not, label %B974, label %B1062
B1164.if:
  %kept.2.2492 = phi i64 [ %kept.3.3, %B1722 ], [ 0, %B1118 ]
  %size.11.2491 = phi i64 [ %size.12.3, %B1722 ], [ %size.10.2, %B1118 ]
  %.1248.0489 = phi i64 [ %.1318, %B1722 ], [ 0, %B1118 ]
  %.1318 = add nuw nsw i64 %.1248.0489, 1
  %.1344 = getelementptr i64, ptr %arg.active, i64 %.1248.0489
  %.1345 = load i64, ptr %.1344, align 8
  %.1351 = getelementptr double, ptr %arg.left, i64 %.1345
  %.1352 = load double, ptr %.1351, align 8
  %.12.i455 = fcmp olt double %.1352, 0.000000e+00
  %.13.i456 = select i1 %.12.i455, double 0.000000e+00, double %.1352
  %.1383 = getelementptr double, ptr %arg.rate, i64 %.1345
  %.1384 = load double, ptr %.1383, align 8
  %.1388 = fdiv double %.13.i456, %.1384
  %.1398 = fmul double %least_s.2.2.lcssa, %.1384
  %.1399 = fsub double %.1352, %.1398
  store double %.1399, ptr %.1351, align 8
  %.1406 = getelementptr double, ptr %arg.nbytes, i64 %.1345
  %.1407 = load double, ptr %.1406, align 8
  %.1408 = fmul double %.1407, 1.000000e-09
  %.1412 = load double, ptr %.1383, align 8
  %.1416 = fdiv double %.1408, %.1412
  %.1418 = fadd double %least_s.2.2.lcssa, %.1416
  %.1419 = fcmp ogt double %.1388, %.1418
  br i1 %.1419, label %B1386, label %B1438.if
B1438.if:
  %size.13.4487 = phi i64 [ %size.14.5, %B1723 ], [ %size.11.2491, %B1164.if ]
  %arg.of_src.arg.of_dst = phi ptr [ %arg.of_dst, %B1723 ], [ %arg.of_src, %B1164.if ]
  %exitcond523.not = phi i1 [ true, %B1723 ], [ false, %B1164.if ]
  %"$phi1488.4.2.5.in" = getelementptr i64, ptr %arg.of_src.arg.of_dst, i64 %.1345
  %"$phi1488.4.2.5" = load i64, ptr %"$phi1488.4.2.5.in", align 8
  %.1619 = getelementptr i64, ptr %arg.missing, i64 %"$phi1488.4.2.5"
  %.1620 = load i64, ptr %.1619, align 8
  %.1621 = add nsw i64 %.1620, -1
  store i64 %.1621, ptr %.1619, align 8
  %.1630.not = icmp eq i64 %.1621, 0
  br i1 %.1630.not, label %B1554, label %B1723
}
declare i64 @llvm.smax.i64(i64, i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1 immarg)
