#!/usr/bin/env bash
# Run a command ahead of whatever else the machine does: setsid -w first.sh COMMAND... Needs root; on a machine of one's own
# it is not needed. A session's priority against others is its autogroup's, see sched(7).
if [ -w /proc/self/autogroup ]; then echo -19 >/proc/self/autogroup; fi
exec nice -n -19 "$@"
