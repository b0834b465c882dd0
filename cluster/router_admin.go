package cluster

import (
	"context"
	"fmt"
	"slices"

	"github.com/skein-rl/skein/replay"
)

// AddShard registers the shard whose nodes are at addrs with the root, and the
// root with the shard. The shard was founded with the cluster's authority and
// with a name (Config.Shard). Again, it updates the addresses.
func (r *Router) AddShard(ctx context.Context, name string, addrs []string) (replay.Shard, error) {
	c := r.sibling(replay.Shard{Addrs: addrs})
	defer c.Close()
	info, err := c.Shard(ctx)
	if err != nil {
		return replay.Shard{}, fmt.Errorf("add shard %q at %v: %w", name, addrs, err)
	}
	if info.Name != name {
		return replay.Shard{}, fmt.Errorf("%w: add shard %q: the nodes at %v are of shard %q: found them with skein node --role replay --shard %s", replay.ErrInvalid, name, addrs, info.Name, name)
	}
	self, err := r.Shard(ctx)
	if err != nil {
		return replay.Shard{}, err
	}
	if info.Root.Version > 0 && info.Root.Group != self.Group {
		return replay.Shard{}, fmt.Errorf("%w: add shard %q: it belongs to the root of raft group %s, this is group %s", replay.ErrInvalid, name, info.Root.Group, self.Group)
	}
	if addrs, err = replayAddrs(ctx, c); err != nil {
		return replay.Shard{}, err
	}
	mine, err := replayAddrs(ctx, r.Client)
	if err != nil {
		return replay.Shard{}, err
	}
	root := replay.Shard{Name: replay.RootShard, Group: self.Group, Addrs: mine, Version: info.Root.Version}
	if _, err := c.setShard(ctx, root); err != nil {
		return replay.Shard{}, err
	}
	shards, _, err := r.placements(ctx, "-")
	if err != nil {
		return replay.Shard{}, err
	}
	s := replay.Shard{Name: name, Group: info.Group, Addrs: addrs}
	for _, have := range shards {
		if have.Name == name {
			s.Version = have.Version
		}
	}
	if s, err = r.setShard(ctx, s); err == nil {
		r.take([]replay.Shard{s})
	}
	return s, err
}

// replayAddrs are the addresses of a group's nodes.
func replayAddrs(ctx context.Context, c *Client) (out []string, err error) {
	st, err := c.ClusterStatus(ctx)
	for _, n := range st.Nodes {
		if n.Role == RoleReplay && n.Addr != "" {
			out = append(out, n.Addr)
		}
	}
	return out, err
}

// ShardStatus is a shard as an operator sees it.
type ShardStatus struct {
	ShardInfo
	Err   string       // why it did not answer
	Nodes []NodeStatus // replay nodes
}

// ShardList is the cluster's shards and where runs were placed.
type ShardList struct {
	Shards []ShardStatus
	Placed []replay.Placement // runs that are not listed live in the root
}

// Shards asks every shard. One that does not answer in time is in the list, with
// the reason.
func (r *Router) Shards(ctx context.Context) (out ShardList, err error) {
	if !r.plain {
		shards, placed, err := r.placements(ctx, "")
		if err != nil {
			return out, err
		}
		r.take(shards)
		out.Placed = placed
	}
	out.Shards, err = each(ctx, r, func(ctx context.Context, c named) (ShardStatus, error) {
		ctx, cancel := context.WithTimeout(ctx, 2*attemptTime)
		defer cancel()
		s := ShardStatus{ShardInfo: ShardInfo{Name: c.name}}
		info, err := c.Shard(ctx)
		if err == nil {
			s.ShardInfo = info
			var st ClusterStatus
			if st, err = c.ClusterStatus(ctx); err == nil {
				for _, n := range st.Nodes {
					if n.Role == RoleReplay {
						s.Nodes = append(s.Nodes, n)
					}
				}
			}
		}
		s.Err = text(err)
		return s, nil
	})
	return out, err
}

// RotateToken replaces the join token of the root, which it returns, and that of
// every other shard, whose nodes keep theirs in their file token: the old one
// admits nobody anywhere.
func (r *Router) RotateToken(ctx context.Context) (Token, error) {
	tokens, err := each(ctx, r, func(ctx context.Context, c named) (Token, error) { return c.RotateToken(ctx) })
	if len(tokens) == 0 {
		return Token{}, err
	}
	return tokens[0], err
}

// ReplaceNode takes old out as soon as fresh, which has joined, can take its
// place: it votes, or stands ready to, and lacks nothing. It waits for that until
// ctx ends, and is told what for. Both are of the group of this client.
func (c *Client) ReplaceNode(ctx context.Context, old, fresh string, waiting func(string)) error {
	last := ""
	var begun uint64 // what was committed when the newcomer was first seen
	for b := (backoffTimer{}); ; {
		st, err := c.ClusterStatus(ctx)
		if err != nil && ctx.Err() != nil && last != "" {
			err = fmt.Errorf("%s: %w", last, err)
		}
		if err != nil {
			return fmt.Errorf("replace node %s by %s: %w", old, fresh, err)
		}
		if begun == 0 && slices.ContainsFunc(st.Nodes, func(n NodeStatus) bool { return n.Role == RoleReplay && n.ID == fresh }) {
			begun = st.Commit
		}
		why, err := st.mayReplace(old, fresh, begun)
		if err != nil {
			return err
		}
		if why == "" {
			return c.RemoveNode(ctx, old)
		}
		if why != last && waiting != nil {
			waiting(why)
		}
		last = why
		if !b.sleep(ctx) {
			return fmt.Errorf("%w: replace node %s by %s: %s: %w", replay.ErrTimeout, old, fresh, why, ctx.Err())
		}
	}
}

// mayReplace says what a replacement waits for; "" = for nothing. The newcomer
// must hold what was committed at begun: under load it is always a little behind
// what is committed now, as every follower is.
func (s ClusterStatus) mayReplace(old, fresh string, begun uint64) (why string, err error) {
	var o, f *NodeStatus
	for i := range s.Nodes {
		switch n := &s.Nodes[i]; {
		case n.Role != RoleReplay:
		case n.ID == old:
			o = n
		case n.ID == fresh:
			f = n
		}
	}
	voters := 0
	for _, n := range s.Nodes {
		if n.Voter {
			voters++
		}
	}
	switch {
	case old == fresh:
		return "", fmt.Errorf("%w: replace node %s: by itself: name the new node", replay.ErrInvalid, old)
	case o == nil:
		return "", fmt.Errorf("%w: replace node %q: there is no such replay node in this group", replay.ErrNotFound, old)
	case f == nil:
		return fmt.Sprintf("node %s has not joined yet: start it with --join", fresh), nil
	case !f.Alive:
		return fmt.Sprintf("node %s does not answer", fresh), nil
	case f.Missing > 0:
		return fmt.Sprintf("node %s lacks %d logs", fresh, f.Missing), nil
	case f.Applied < begun:
		return fmt.Sprintf("node %s has applied %d of %d entries", fresh, f.Applied, begun), nil
	case !f.Voter && voters < maxVoters:
		return fmt.Sprintf("node %s does not vote yet", fresh), nil
	}
	return "", nil
}
