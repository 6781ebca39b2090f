"""This folder holds the collective algorithms, one file each: pure functions of a world size that return a
CollectiveSchedule. Those for ranks that come late are in `late`. They need NumPy; StragglAR's matchings need networkx,
late_join's last rounds OR-tools, both imported when they are called. Others import only `catalogue`, which names,
refuses and makes them.
"""
