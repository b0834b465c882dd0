package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/skein-rl/skein/replay"
)

// Store is what this package needs of a store; replay.Store and replay.Operator
// together have it.
type Store interface {
	Status(ctx context.Context, run string) (replay.RunStatus, error)
	Fetch(ctx context.Context, logIDs []string) ([]replay.Record, error)
	Tail(ctx context.Context, q replay.TailRequest) ([]replay.TailItem, error)
}

// fetchBatch is how many logs are fetched at once.
const fetchBatch = 64

// Found is a log that passed a filter, with the token behind it. Bytes are there
// when they were asked for.
type Found struct {
	Record replay.Record
	Token  string
}

// Find calls fn with the logs of a run behind a token ("" = from the first) that
// pass the filter, in order of acceptance, some at a time and with their bytes
// when bytes is true. last is the token behind the newest log looked at. A log
// that is deleted meanwhile is left out.
func Find(ctx context.Context, st Store, run, token string, f Filter, bytes bool, fn func(found []Found, last string) error) error {
	if err := f.Validate(); err != nil {
		return fmt.Errorf("%w: filter: %w", replay.ErrInvalid, err)
	}
	for {
		items, err := st.Tail(ctx, replay.TailRequest{Run: run, Table: f.Table, Token: token, Limit: 512})
		if err != nil {
			return err
		}
		if len(items) == 0 {
			return nil
		}
		for part := range slices.Chunk(items, fetchBatch) {
			found, err := pick(ctx, st, part, f, bytes)
			if err != nil {
				return err
			}
			token = part[len(part)-1].Token
			if err := fn(found, token); err != nil {
				return err
			}
		}
	}
}

// pick is the filter on some items.
func pick(ctx context.Context, st Store, items []replay.TailItem, f Filter, bytes bool) ([]Found, error) {
	var out []Found
	for _, x := range items {
		if f.Match(x.Item) {
			out = append(out, Found{replay.Record{Item: x.Item}, x.Token})
		}
	}
	if !bytes && !f.NeedsBytes() || len(out) == 0 {
		return out, nil
	}
	recs, err := fetch(ctx, st, out)
	if err != nil {
		return nil, err
	}
	var kept []Found
	for _, x := range out {
		r, ok := recs[x.Record.Item.LogID]
		if !ok {
			continue
		}
		match, err := f.MatchLog(r.Bytes)
		if err != nil {
			return nil, fmt.Errorf("log %q: %w", r.Item.LogID, err)
		}
		if match {
			kept = append(kept, Found{r, x.Token})
		}
	}
	return kept, nil
}

// fetch gets logs' bytes; one by one when some were deleted meanwhile.
func fetch(ctx context.Context, st Store, found []Found) (map[string]replay.Record, error) {
	ids := make([]string, len(found))
	for i, x := range found {
		ids[i] = x.Record.Item.LogID
	}
	recs, err := st.Fetch(ctx, ids)
	if errors.Is(err, replay.ErrNotFound) && len(ids) > 1 {
		recs, err = nil, nil
		for _, id := range ids {
			one, ferr := st.Fetch(ctx, []string{id})
			if errors.Is(ferr, replay.ErrNotFound) {
				continue
			}
			if ferr != nil {
				return nil, ferr
			}
			recs = append(recs, one...)
		}
	} else if errors.Is(err, replay.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := make(map[string]replay.Record, len(recs))
	for _, r := range recs {
		out[r.Item.LogID] = r
	}
	return out, nil
}

// followWait is how long one call waits for something new, retryAfter how long
// the next one comes after one that found no store.
const (
	followWait = 10 * time.Second
	retryAfter = 200 * time.Millisecond
)

// Follow is Find that goes on: it waits for what is appended until ctx ends,
// which is no error. Every log behind the token is given once, through changes
// of leader and breaks of the connection; a store that cannot be reached is
// tried again.
func Follow(ctx context.Context, st Store, run, token string, f Filter, fn func(found []Found, last string) error) error {
	if err := f.Validate(); err != nil {
		return fmt.Errorf("%w: filter: %w", replay.ErrInvalid, err)
	}
	for ctx.Err() == nil {
		items, err := st.Tail(ctx, replay.TailRequest{Run: run, Table: f.Table, Token: token, Wait: followWait})
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, replay.ErrUnavailable) {
			if wait(ctx, retryAfter) != nil { // a client has waited already, a node in this process has not
				break
			}
			continue
		}
		if err != nil {
			return err
		}
		for part := range slices.Chunk(items, fetchBatch) {
			found, err := pick(ctx, st, part, f, false)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			token = part[len(part)-1].Token
			if err := fn(found, token); err != nil {
				return err
			}
		}
	}
	return nil
}
