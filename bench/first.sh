#!/usr/bin/env bash
# Run a command ahead of whatever else the machine does: setsid -w first.sh COMMAND... Needs root; on a machine of one's own
# it is not needed. A session's priority against others is its autogroup's, see sched(7). One command at a time: a second
# waits up to an hour for the first.
exec 9>"${TMPDIR:-/tmp}/skein-bench.lock"
flock -w 3600 9 || { echo "first.sh: another benchmark has been running for an hour" >&2; exit 1; }
if [ -w /proc/self/autogroup ]; then echo -19 >/proc/self/autogroup; fi
exec nice -n -19 "$@"
