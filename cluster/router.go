package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/skein-rl/skein/replay"
)

// Router is a replay.Store and replay.Operator on a cluster of several shards:
// each call goes to the shard where its run lives, and on to the next when the
// run moves meanwhile. What it embeds is the client of the root, which has the
// cluster's membership. Safe for concurrent use.
//
// It asks the root once for every run, and again only when a shard says that the
// run is elsewhere: with one shard it costs one call a run.
type Router struct {
	*Client // of the root

	mu     sync.Mutex
	others map[string]*Client // by shard
	known  map[string]string  // shard of a run
	last   string             // shard of the newest call: where blobs are likely wanted
	extra  *Client            // the one it was made of, when that is not the root's
	plain  bool               // the nodes know of no shards: an older version
}

var (
	_ replay.Store    = (*Router)(nil)
	_ replay.Operator = (*Router)(nil)
)

// Route makes a Router of a client of any shard, which it closes.
func Route(ctx context.Context, c *Client) (*Router, error) {
	r := &Router{Client: c, others: map[string]*Client{}, known: map[string]string{}}
	info, err := c.Shard(ctx)
	switch {
	case errors.Is(err, replay.ErrInvalid):
		r.plain = true
		return r, nil
	case err != nil:
		return nil, err
	case info.Name == replay.RootShard:
		return r, nil
	case info.Root.Version == 0:
		return nil, fmt.Errorf("%w: the node that answered is of shard %q, which no cluster has registered: join by a node of the root, or register it first: skein cluster shard add %s",
			replay.ErrInvalid, info.Name, info.Name)
	}
	r.extra = c
	r.Client = c.sibling(info.Root)
	return r, nil
}

// sibling is a client of another shard of the same cluster.
func (c *Client) sibling(s replay.Shard) *Client {
	b, _ := openBook("") // memory: can't fail
	out := &Client{id: c.id, book: b, group: s.Group, seeds: slices.Clone(s.Addrs), links: make(map[string]*link)}
	out.ctx, out.stop = context.WithCancel(context.Background())
	out.tasks.run(func() { // it may know more nodes than were registered
		ctx, cancel := context.WithTimeout(out.ctx, defaultTimeout)
		defer cancel()
		_, _ = out.ClusterStatus(ctx)
	})
	return out
}

// Close ends the connections to all shards.
func (r *Router) Close() error {
	r.mu.Lock()
	all := append(slices.Collect(maps.Values(r.others)), r.Client)
	if r.extra != nil {
		all = append(all, r.extra)
	}
	r.mu.Unlock()
	var errs []error
	for _, c := range all {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// take keeps clients of the shards that the root listed.
func (r *Router) take(shards []replay.Shard) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range shards {
		if r.others[s.Name] == nil {
			r.others[s.Name] = r.sibling(s)
		}
	}
}

// of is the client of a shard.
func (r *Router) of(shard string) (*Client, error) {
	if shard == replay.RootShard || shard == "" {
		return r.Client, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.others[shard]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("%w: shard %q (skein cluster shards lists them)", replay.ErrNotFound, shard)
}

// ShardClient is the client of one shard, for what is done shard by shard, such as
// backups. The router closes it.
func (r *Router) ShardClient(ctx context.Context, shard string) (*Client, error) {
	if _, err := r.all(ctx); err != nil {
		return nil, err
	}
	return r.of(shard)
}

// Placement asks the root where a run lives; Version 0: it was never placed.
func (r *Router) Placement(ctx context.Context, run string) (replay.Placement, error) {
	p := replay.Placement{Run: run, Shard: replay.RootShard}
	if r.plain {
		return p, nil
	}
	shards, placed, err := r.placements(ctx, run)
	if err != nil {
		return p, err
	}
	r.take(shards)
	if len(placed) > 0 {
		p = placed[0]
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known[run] = p.Shard
	return p, nil
}

// where is the client of the shard where a run lives, as far as is known.
func (r *Router) where(ctx context.Context, run string) (*Client, error) {
	r.mu.Lock()
	shard, ok := r.known[run]
	r.mu.Unlock()
	if !ok {
		p, err := r.Placement(ctx, run)
		if err != nil {
			return nil, err
		}
		shard = p.Shard
	}
	r.mu.Lock()
	r.last = shard
	r.mu.Unlock()
	return r.of(shard)
}

// ServePolicies is Client.ServePolicies for runs of all shards.
func (r *Router) ServePolicies(listen string, log *slog.Logger) (*Policies, error) {
	s, err := r.Client.ServePolicies(listen, log)
	if err == nil {
		s.where = r.where
	}
	return s, err
}

func (r *Router) forget(run string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, run)
}

// to makes a call at the shard of a run. A run that is on its way is waited for,
// as a missing leader is. wait is how long the call may rightly take.
func to[T any](ctx context.Context, r *Router, run string, wait time.Duration, call func(context.Context, *Client) (T, error)) (out T, err error) {
	ctx, cancel := bounded(ctx, wait)
	defer cancel()
	for b := (backoffTimer{}); ; {
		c, err := r.where(ctx, run)
		if err != nil {
			return out, err
		}
		if out, err = call(ctx, c); !errors.Is(err, replay.ErrMoved) {
			return out, err
		}
		r.forget(run)
		if !b.sleep(ctx) {
			return out, fmt.Errorf("cluster: run %q: gave up waiting for its move between shards: %w: %w (last: %w)", run, replay.ErrUnavailable, ctx.Err(), err)
		}
	}
}

// do is to for a call without an answer.
func (r *Router) do(ctx context.Context, run string, call func(context.Context, *Client) error) error {
	_, err := to(ctx, r, run, 0, func(ctx context.Context, c *Client) (struct{}, error) { return struct{}{}, call(ctx, c) })
	return err
}

// all lists the shards with their clients, those where the newest calls went
// first.
func (r *Router) all(ctx context.Context) ([]named, error) {
	if !r.plain {
		shards, _, err := r.placements(ctx, "-") // some run: all placements are more than is wanted
		if err != nil {
			return nil, err
		}
		r.take(shards)
	}
	return r.now(), nil
}

// now is all, as far as is known.
func (r *Router) now() []named {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := []named{{replay.RootShard, r.Client}}
	for _, name := range slices.Sorted(maps.Keys(r.others)) {
		out = append(out, named{name, r.others[name]})
	}
	slices.SortStableFunc(out, func(a, b named) int {
		switch {
		case a.name == r.last && b.name != r.last:
			return -1
		case b.name == r.last && a.name != r.last:
			return 1
		}
		return 0
	})
	return out
}

// named is a shard's client.
type named struct {
	name string
	*Client
}

// each asks every shard at once and keeps the order of all.
func each[T any](ctx context.Context, r *Router, call func(context.Context, named) (T, error)) ([]T, error) {
	all, err := r.all(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b named) int { return order(a.name, b.name) })
	out, errs := make([]T, len(all)), make([]error, len(all))
	var wg sync.WaitGroup
	for i, c := range all {
		wg.Go(func() {
			if out[i], errs[i] = call(ctx, c); errs[i] != nil && len(all) > 1 {
				errs[i] = fmt.Errorf("shard %s: %w", c.name, errs[i])
			}
		})
	}
	wg.Wait()
	return out, errors.Join(errs...)
}

// order sorts shards: the root first, the others by name.
func order(a, b string) int {
	switch {
	case a == b:
		return 0
	case a == replay.RootShard || b != replay.RootShard && a < b:
		return -1
	}
	return 1
}

// first asks one shard after the other until one has what is wanted.
func first[T any](ctx context.Context, r *Router, call func(named) (T, error)) (out T, err error) {
	list, asked := r.now(), map[string]bool{}
	for round := 0; round < 2; round++ {
		for _, c := range list {
			if asked[c.name] {
				continue
			}
			asked[c.name] = true
			if out, err = call(c); !errors.Is(err, replay.ErrNotFound) {
				return out, err
			}
		}
		if round == 0 { // perhaps in a shard that is new
			var aerr error
			if list, aerr = r.all(ctx); aerr != nil {
				return out, errors.Join(err, aerr)
			}
		}
	}
	return out, err
}
