package cluster

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skein-rl/skein/replay"
)

// chunk is a batch of records on its way to a majority of disks. report says
// how one node fared; finish is called once, when a majority has the chunk
// (nil) or can't get it any more, or when time is up.
type chunk struct {
	id      uint64
	term    uint64
	recs    []replay.Record // each log once
	items   []replay.Item   // of every caller in order, repeats included
	size    int64
	batch   []*pending
	results []replay.AppendResult // set by the committer
	finish  func(error)

	mu     sync.Mutex
	need   int
	voters map[string]error // answers: nil = durable; errSilent = none yet
	timer  *time.Timer
	over   bool
}

var (
	errSilent     = errors.New("no answer")
	errBehind     = errors.New("too far behind; it will pull what it misses")
	errNoMajority = errors.New("no majority left")
)

func newChunk(id, term uint64, batch []*pending, voters []string, limit time.Duration) *chunk {
	c := &chunk{id: id, term: term, batch: batch, need: len(voters)/2 + 1, voters: make(map[string]error, len(voters))}
	for _, v := range voters {
		c.voters[v] = errSilent
	}
	seen := make(map[string]bool)
	for _, p := range batch {
		c.size += p.size
		for _, r := range p.recs {
			if p.cmd == nil {
				c.items = append(c.items, r.Item)
			}
			if k := r.Item.LogID + "\x00" + r.Item.Digest; !seen[k] { // a twin has its original's id
				seen[k] = true
				c.recs = append(c.recs, r)
			}
		}
	}
	c.timer = time.AfterFunc(limit, func() { c.end(fmt.Errorf("time is up after %s", limit)) })
	return c
}

// nack: the node will not have it by this way.
func (c *chunk) nack(node string, err error) { c.report(node, err) }

// report: the node has the chunk on disk (nil), or why it will not.
func (c *chunk) report(node string, err error) {
	c.mu.Lock()
	if _, voter := c.voters[node]; !voter || c.over {
		c.mu.Unlock()
		return
	}
	c.voters[node] = err
	have, lost := 0, 0
	for _, e := range c.voters {
		switch {
		case e == nil:
			have++
		case !errors.Is(e, errSilent):
			lost++
		}
	}
	enough, hopeless := have >= c.need, len(c.voters)-lost < c.need
	c.mu.Unlock()
	switch {
	case enough:
		c.end(nil)
	case hopeless:
		c.end(errNoMajority)
	}
}

// end calls finish once. A failure names the nodes and what each said; it is a
// full disk when that is what stands in the way, a stale term likewise.
func (c *chunk) end(failed error) {
	c.mu.Lock()
	if c.over {
		c.mu.Unlock()
		return
	}
	c.over = true
	c.timer.Stop()
	err := failed
	if failed != nil {
		kind, have := replay.ErrUnavailable, 0
		var says []string
		for _, id := range slices.Sorted(maps.Keys(c.voters)) {
			switch e := c.voters[id]; {
			case e == nil:
				have++
			default:
				if errors.Is(e, replay.ErrDiskFull) {
					kind = replay.ErrDiskFull
				}
				says = append(says, fmt.Sprintf("node %s: %v", id, e))
			}
		}
		err = fmt.Errorf("cluster: payload durable on %d of %d needed replicas: %w (%s): %w",
			have, c.need, failed, strings.Join(says, "; "), kind)
	}
	c.mu.Unlock()
	c.finish(err)
}

// answer tells every caller of the chunk.
func (c *chunk) answer(err error) {
	rest := c.results
	for _, p := range c.batch {
		if err != nil {
			p.done <- appended{err: err}
			continue
		}
		if p.cmd != nil {
			p.done <- appended{results: p.answer.Append, updated: p.answer.Updated, err: p.refused}
			continue
		}
		p.done <- appended{results: rest[:len(p.recs):len(p.recs)]}
		rest = rest[len(p.recs):]
	}
}

// chunkQueue is a queue that is full by bytes.
type chunkQueue struct {
	ch   chan *chunk
	size atomic.Int64 // queued and in work
}

func newChunkQueue() *chunkQueue { return &chunkQueue{ch: make(chan *chunk, 4096)} }

// push never waits; false = full.
func (q *chunkQueue) push(c *chunk) bool {
	if q.size.Add(c.size) > replicaQueue {
		q.size.Add(-c.size)
		return false
	}
	select {
	case q.ch <- c:
		return true
	default:
		q.size.Add(-c.size)
		return false
	}
}

// done gives the room of chunks back.
func (q *chunkQueue) done(cs []*chunk) {
	for _, c := range cs {
		q.size.Add(-c.size)
	}
}

// gather takes what else is queued, up to a few megabytes, grouped by term.
func (q *chunkQueue) gather(first *chunk) [][]*chunk {
	groups, size := [][]*chunk{{first}}, first.size
	for size < 4*chunkBytes {
		select {
		case c := <-q.ch:
			last := len(groups) - 1
			if groups[last][0].term == c.term {
				groups[last] = append(groups[last], c)
			} else {
				groups = append(groups, []*chunk{c})
			}
			size += c.size
		default:
			return groups
		}
	}
	return groups
}

func chunkRecords(cs []*chunk) []replay.Record {
	var recs []replay.Record
	for _, c := range cs {
		recs = append(recs, c.recs...)
	}
	return recs
}
