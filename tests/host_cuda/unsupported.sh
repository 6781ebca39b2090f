#!/bin/sh
# unsupported.sh STATUS NAMES OBJECT ...: C++ of functions that return STATUS, one for each name that no object defines.
status=$1 names=$2
shift 2
nm --defined-only "$@" | awk '{ print $NF }' | sort -u > "$names.defined"
sort -u "$names" | comm -23 - "$names.defined" | while read -r name; do
    echo "extern \"C\" int $name() { return $status; }"
done
