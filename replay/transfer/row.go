package transfer

import (
	"fmt"
	"time"

	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/replay"
)

// Row is a log in an export: the columns of a Parquet file, and the fields of a
// JSON line. Data is the encoded EventLog (docs/format/eventlog.md); in JSON it
// is base64.
type Row struct {
	LogID      string   `json:"log_id" parquet:"log_id"`
	Run        string   `json:"run" parquet:"run,dict"`
	Table      string   `json:"table" parquet:"table,dict"`
	Group      string   `json:"group" parquet:"group"`
	Member     uint32   `json:"member" parquet:"member"`
	GroupSize  uint32   `json:"group_size" parquet:"group_size"`
	Source     string   `json:"source" parquet:"source,dict"`
	Task       string   `json:"task" parquet:"task"`
	Attempt    uint32   `json:"attempt" parquet:"attempt"`
	Worker     string   `json:"worker" parquet:"worker,dict"`
	Status     string   `json:"status" parquet:"status,dict"`      // ok, truncated, failed, timeout
	Cause      string   `json:"cause" parquet:"cause,dict"`        // of a failure
	MinVersion uint64   `json:"min_version" parquet:"min_version"` // oldest policy version of any sampled token
	MaxVersion uint64   `json:"max_version" parquet:"max_version"` // newest
	Tokens     uint32   `json:"tokens" parquet:"tokens"`           // sampled
	Reward     *float64 `json:"reward" parquet:"reward,optional"`  // null when there is none
	Digest     string   `json:"digest" parquet:"digest"`           // of the EventLog
	Size       uint32   `json:"size" parquet:"size"`               // bytes of data
	Created    int64    `json:"created_ns" parquet:"created_ns"`   // since 1970, UTC; 0 = unknown
	Data       []byte   `json:"data" parquet:"data,zstd"`
}

func rowOf(r replay.Record) Row {
	it := r.Item
	row := Row{
		LogID: it.LogID, Run: it.Run, Table: it.Table, Group: it.Group, Member: it.Member, GroupSize: it.GroupSize, Source: it.Source,
		Task: it.Task, Attempt: it.Attempt, Worker: it.Worker, Status: StatusName(eventlog.Status(it.Status)), Cause: it.Cause,
		MinVersion: it.MinVersion, MaxVersion: it.MaxVersion, Tokens: it.Tokens, Digest: it.Digest, Size: it.Size, Data: r.Bytes,
	}
	if it.HasReward {
		row.Reward = &it.Reward
	}
	if !it.Created.IsZero() {
		row.Created = it.Created.UnixNano()
	}
	return row
}

func (r Row) record() (replay.Record, error) {
	status, ok := statuses[r.Status]
	if !ok {
		return replay.Record{}, fmt.Errorf("log %q: status %q: want ok, truncated, failed or timeout", r.LogID, r.Status)
	}
	it := replay.Item{
		LogID: r.LogID, Run: r.Run, Table: r.Table, Group: r.Group, Member: r.Member, GroupSize: r.GroupSize, Source: r.Source, Task: r.Task,
		Attempt: r.Attempt, Worker: r.Worker, Status: uint8(status), Cause: r.Cause, MinVersion: r.MinVersion, MaxVersion: r.MaxVersion,
		Tokens: r.Tokens, Digest: r.Digest, Size: r.Size,
	}
	if r.Reward != nil {
		it.Reward, it.HasReward = *r.Reward, true
	}
	if r.Created != 0 {
		it.Created = time.Unix(0, r.Created).UTC()
	}
	return replay.Record{Item: it, Bytes: r.Data}, nil
}
