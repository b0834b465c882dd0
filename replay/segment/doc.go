// Package segment stores records in append-only files. It knows nothing of
// what they mean: a record is an id, a digest and bytes.
//
// Durability: Append returns when the record is on the device; all appenders
// that wait at the same time share one fsync. A record is found again by its
// [Position] and verified by CRC on every read.
//
// After a crash: Open cuts what a torn write left at the end of the last file.
// Only a tail with no valid record behind it is cut. Damage with valid records
// behind it is corruption, kept, counted and reported, never truncated. A
// failed fsync is never retried on the same file: the kernel may have dropped
// the pages, so the file is left as it is and a new one is begun.
//
// A free-space watermark refuses appends with [ErrDiskFull] well before the
// file system is full; when space is back appends go on, without a restart.
//
// The format is described in docs/format/segment.md.
package segment
