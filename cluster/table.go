package cluster

import (
	"context"
	"fmt"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/table"
)

// This file is replay.TableStore three times: on the leader, on the wire, and
// in the client.

// SetTable implements replay.TableStore.
func (s *nodeStore) SetTable(ctx context.Context, run, name string, cfg table.Config, version uint64) (uint64, error) {
	if err := cfg.Validate(); err != nil {
		return 0, fmt.Errorf("%w: table %q of run %q: %w", replay.ErrInvalid, name, run, err)
	}
	res, err := s.result(ctx, replay.SetTableCmd{Now: s.n.now(), Run: run, Table: name, Config: cfg, Version: version})
	return res.Version, err
}

func (s *nodeStore) result(ctx context.Context, cmd replay.Command) (replay.Result, error) {
	ctx, cancel := bounded(ctx, 0)
	defer cancel()
	return s.n.propose(ctx, cmd)
}

// Tables implements replay.TableStore.
func (s *nodeStore) Tables(ctx context.Context, run string) ([]replay.TableStatus, error) {
	return query(ctx, s.n, func(kv replay.Reader) ([]replay.TableStatus, error) { return replay.Tables(kv, run) })
}

// TableHistory implements replay.TableStore.
func (s *nodeStore) TableHistory(ctx context.Context, run, name string) ([]replay.TableVersion, error) {
	return query(ctx, s.n, func(kv replay.Reader) ([]replay.TableVersion, error) { return replay.TableHistory(kv, run, name) })
}

// TableGroups implements replay.TableStore. A page has at most maxPage groups.
func (s *nodeStore) TableGroups(ctx context.Context, run, name, cursor string, limit int) (out []replay.TableGroup, next string, err error) {
	ctx, cancel := bounded(ctx, 0)
	defer cancel()
	err = s.n.view(ctx, func(kv replay.Reader) (err error) {
		out, next, err = replay.TableGroups(kv, run, name, cursor, min(limit, maxPage))
		return err
	})
	return out, next, err
}

// InsertGroups implements replay.TableStore.
func (s *nodeStore) InsertGroups(ctx context.Context, run, name string, groups []replay.GroupInsert) ([]replay.AppendResult, error) {
	res, err := s.result(ctx, replay.InsertGroupsCmd{Now: s.n.now(), Run: run, Table: name, Groups: groups})
	if err != nil {
		return nil, err
	}
	return res.Append, insertError(groups, res.Append)
}

func insertError(groups []replay.GroupInsert, results []replay.AppendResult) error {
	if len(results) != len(groups) {
		return fmt.Errorf("cluster: %d results for %d groups", len(results), len(groups))
	}
	return replay.AppendError(func(i int) string { return groups[i].Group }, results)
}

// UpdatePriorities implements replay.TableStore.
func (s *nodeStore) UpdatePriorities(ctx context.Context, run, name string, updates []replay.GroupPriority) (int, error) {
	res, err := s.result(ctx, replay.UpdatePrioritiesCmd{Now: s.n.now(), Run: run, Table: name, Updates: updates})
	return res.Updated, err
}

// RemoveGroups implements replay.TableStore.
func (s *nodeStore) RemoveGroups(ctx context.Context, run, name string, groups []string, reason string) (int, error) {
	res, err := s.result(ctx, replay.RemoveGroupsCmd{Now: s.n.now(), Run: run, Table: name, Groups: groups, Reason: reason})
	return res.Updated, err
}

func (r *replayServer) SetTable(ctx context.Context, q *pb.SetTableRequest) (*pb.SetTableResponse, error) {
	cfg, err := table.Decode(q.GetConfig(), table.Config{})
	if err != nil {
		return nil, fmt.Errorf("%w: table %q of run %q: %w", replay.ErrInvalid, q.GetTable(), q.GetRun(), err)
	}
	v, err := r.s.SetTable(ctx, q.GetRun(), q.GetTable(), cfg, q.GetVersion())
	return &pb.SetTableResponse{Version: v}, err
}

func (r *replayServer) Tables(ctx context.Context, q *pb.RunRequest) (*pb.TablesResponse, error) {
	ts, err := r.s.Tables(ctx, q.GetRun())
	if err != nil {
		return nil, err
	}
	out := new(pb.TablesResponse)
	for _, t := range ts {
		m, err := tableTo(t)
		if err != nil {
			return nil, err
		}
		out.Tables = append(out.Tables, m)
	}
	return out, nil
}

func (r *replayServer) TableHistory(ctx context.Context, q *pb.TableRequest) (*pb.TableHistoryResponse, error) {
	vs, err := r.s.TableHistory(ctx, q.GetRun(), q.GetTable())
	if err != nil {
		return nil, err
	}
	out := new(pb.TableHistoryResponse)
	for _, v := range vs {
		cfg, err := v.Config.Encode()
		if err != nil {
			return nil, err
		}
		out.Versions = append(out.Versions, &pb.TableVersion{Version: v.Version, Config: cfg, Set: nanos(v.Set)})
	}
	return out, nil
}

func (r *replayServer) TableGroups(ctx context.Context, q *pb.TableGroupsRequest) (*pb.TableGroupsResponse, error) {
	gs, next, err := r.s.TableGroups(ctx, q.GetRun(), q.GetTable(), q.GetCursor(), int(q.GetLimit()))
	return &pb.TableGroupsResponse{Groups: mapSlice(gs, tableGroupTo), Next: next}, err
}

// InsertGroups answers with results; the client makes the error of them.
func (r *replayServer) InsertGroups(ctx context.Context, q *pb.InsertGroupsRequest) (*pb.InsertGroupsResponse, error) {
	res, err := r.s.InsertGroups(ctx, q.GetRun(), q.GetTable(), mapSlice(q.GetGroups(), insertFrom))
	if res == nil && err != nil {
		return nil, err
	}
	return &pb.InsertGroupsResponse{Results: mapSlice(res, resultTo)}, nil
}

func (r *replayServer) UpdatePriorities(ctx context.Context, q *pb.UpdatePrioritiesRequest) (*pb.CountResponse, error) {
	n, err := r.s.UpdatePriorities(ctx, q.GetRun(), q.GetTable(), mapSlice(q.GetUpdates(), priorityFrom))
	return &pb.CountResponse{Count: int64(n)}, err
}

func (r *replayServer) RemoveGroups(ctx context.Context, q *pb.RemoveGroupsRequest) (*pb.CountResponse, error) {
	n, err := r.s.RemoveGroups(ctx, q.GetRun(), q.GetTable(), q.GetGroups(), q.GetReason())
	return &pb.CountResponse{Count: int64(n)}, err
}

// SetTable implements replay.TableStore. A retry whose first try was decided
// finds the same configuration there, which is a success.
func (c *Client) SetTable(ctx context.Context, run, name string, cfg table.Config, version uint64) (uint64, error) {
	b, err := cfg.Encode()
	if err != nil {
		return 0, fmt.Errorf("%w: table %q of run %q: %w", replay.ErrInvalid, name, run, err)
	}
	a, err := unary(ctx, c, "set table "+name, 0, &pb.SetTableRequest{Run: run, Table: name, Config: b, Version: version},
		pb.ReplayClient.SetTable)
	return a.GetVersion(), err
}

// Tables implements replay.TableStore.
func (c *Client) Tables(ctx context.Context, run string) ([]replay.TableStatus, error) {
	a, err := unary(ctx, c, "list tables of run "+run, 0, &pb.RunRequest{Run: run}, pb.ReplayClient.Tables)
	if err != nil {
		return nil, err
	}
	out := make([]replay.TableStatus, 0, len(a.GetTables()))
	for _, m := range a.GetTables() {
		t, err := tableFrom(m)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// TableHistory implements replay.TableStore.
func (c *Client) TableHistory(ctx context.Context, run, name string) ([]replay.TableVersion, error) {
	a, err := unary(ctx, c, "history of table "+name, 0, &pb.TableRequest{Run: run, Table: name}, pb.ReplayClient.TableHistory)
	if err != nil {
		return nil, err
	}
	out := make([]replay.TableVersion, 0, len(a.GetVersions()))
	for _, v := range a.GetVersions() {
		cfg, err := table.Decode(v.GetConfig(), table.Config{})
		if err != nil {
			return nil, err
		}
		out = append(out, replay.TableVersion{Version: v.GetVersion(), Config: cfg, Set: fromNanos(v.GetSet())})
	}
	return out, nil
}

// TableGroups implements replay.TableStore. A page has at most 4096 groups.
func (c *Client) TableGroups(ctx context.Context, run, name, cursor string, limit int) ([]replay.TableGroup, string, error) {
	a, err := unary(ctx, c, "groups of table "+name, 0,
		&pb.TableGroupsRequest{Run: run, Table: name, Cursor: cursor, Limit: int64(limit)}, pb.ReplayClient.TableGroups)
	return mapSlice(a.GetGroups(), tableGroupFrom), a.GetNext(), err
}

// InsertGroups implements replay.TableStore.
func (c *Client) InsertGroups(ctx context.Context, run, name string, groups []replay.GroupInsert) ([]replay.AppendResult, error) {
	a, err := unary(ctx, c, "insert into table "+name, 0,
		&pb.InsertGroupsRequest{Run: run, Table: name, Groups: mapSlice(groups, insertTo)}, pb.ReplayClient.InsertGroups)
	if err != nil {
		return nil, err
	}
	results := mapSlice(a.GetResults(), resultFrom)
	return results, insertError(groups, results)
}

// UpdatePriorities implements replay.TableStore.
func (c *Client) UpdatePriorities(ctx context.Context, run, name string, updates []replay.GroupPriority) (int, error) {
	a, err := unary(ctx, c, "priorities of table "+name, 0,
		&pb.UpdatePrioritiesRequest{Run: run, Table: name, Updates: mapSlice(updates, priorityTo)}, pb.ReplayClient.UpdatePriorities)
	return int(a.GetCount()), err
}

// RemoveGroups implements replay.TableStore. After a retry the count may leave
// out what the first try removed.
func (c *Client) RemoveGroups(ctx context.Context, run, name string, groups []string, reason string) (int, error) {
	a, err := unary(ctx, c, "remove from table "+name, 0,
		&pb.RemoveGroupsRequest{Run: run, Table: name, Groups: groups, Reason: reason}, pb.ReplayClient.RemoveGroups)
	return int(a.GetCount()), err
}

// DeleteLogs implements replay.Store.
func (s *nodeStore) DeleteLogs(ctx context.Context, run string, logIDs []string, reason string) (int, error) {
	res, err := s.result(ctx, replay.DeleteLogsCmd{Now: s.n.now(), Run: run, LogIDs: logIDs, Reason: reason})
	return res.Updated, err
}

func (r *replayServer) DeleteLogs(ctx context.Context, q *pb.DeleteLogsRequest) (*pb.CountResponse, error) {
	n, err := r.s.DeleteLogs(ctx, q.GetRun(), q.GetLogIds(), q.GetReason())
	return &pb.CountResponse{Count: int64(n)}, err
}

// DeleteLogs implements replay.Store. After a retry the count may leave out what
// the first try deleted.
func (c *Client) DeleteLogs(ctx context.Context, run string, logIDs []string, reason string) (int, error) {
	a, err := unary(ctx, c, fmt.Sprintf("delete %d logs", len(logIDs)), 0,
		&pb.DeleteLogsRequest{Run: run, LogIds: logIDs, Reason: reason}, pb.ReplayClient.DeleteLogs)
	return int(a.GetCount()), err
}
