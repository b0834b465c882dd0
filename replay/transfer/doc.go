// Package transfer moves logs out of a store and back: it finds them by what
// their index and contents say, follows them, exports them to files that other
// tools read, imports such files, and redacts.
//
// # An export
//
// A folder:
//
//	manifest.json        what it is, and how far it got (Manifest)
//	logs-00000.jsonl     or .parquet: one row a log, in order of acceptance (Row)
//	groups.jsonl         the groups of all tables, one line each (replay.ImportGroup)
//
// The manifest is replaced after every finished file, so an interrupted export
// goes on behind the last one, and every file's digest is checked at import.
// Importing again what is there changes nothing.
package transfer
