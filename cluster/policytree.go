package cluster

import (
	"slices"
	"sync"
	"time"
)

// Published policies go from worker to worker. The leader answers "from whom":
// the first policyRoots of a tenant fetch from the replay nodes, every later one
// from a worker that has the adapter or is fetching it (it passes on what has
// come in, so the length of a chain costs little), none of which serves more than
// policyFanout at once. Knowing nothing is harmless: the answer is then the
// replay nodes. So this lives in the leader's memory only.
const (
	policyRoots  = 2
	policyFanout = 2
	// policyDoubts processes that gave a worker up take it out of the tree.
	policyDoubts = 2
	// policyStuck ends the claim of a fetch whose end nobody told of.
	policyStuck = 5 * time.Minute
	policyTrees = 256 // adapters remembered
)

// policyForest holds the trees of adapters being distributed.
type policyForest struct {
	mu    sync.Mutex
	trees map[policyKey]*policyTree
	order []policyKey // oldest first
}

// policyKey keeps tenants apart: a worker only fetches from one of its own.
type policyKey struct{ tenant, digest string }

type policyTree struct {
	roots int
	nodes map[string]*policyHolder
	line  []*policyHolder // in order of their first asking
}

// policyHolder is a worker that has an adapter or fetches it.
type policyHolder struct {
	id, addr string
	from     *policyHolder // nil: the replay nodes, or none any more
	depth    int           // of fetches under way above it
	serves   int           // that fetch from it now
	held     bool
	asked    time.Time
	doubts   int
	gaveUp   map[string]bool // sources that failed it
}

func newPolicyForest() *policyForest { return &policyForest{trees: make(map[policyKey]*policyTree)} }

func (f *policyForest) tree(key policyKey) *policyTree {
	t := f.trees[key]
	if t == nil {
		if len(f.order) >= policyTrees {
			delete(f.trees, f.order[0])
			f.order = slices.Delete(f.order, 0, 1)
		}
		t = &policyTree{nodes: make(map[string]*policyHolder)}
		f.trees[key], f.order = t, append(f.order, key)
	}
	return t
}

// holder is the worker's place in the tree, a new one at the end of the line.
func (t *policyTree) holder(id string) *policyHolder {
	h := t.nodes[id]
	if h == nil {
		h = &policyHolder{id: id, gaveUp: make(map[string]bool)}
		t.nodes[id], t.line = h, append(t.line, h)
	}
	return h
}

// source is from whom a worker fetches; "" is the replay nodes. failed is the
// source it gave up before. silent says of whom nothing was heard for too long.
func (f *policyForest) source(key policyKey, id, addr, failed string, now time.Time, silent func(id string) bool) (from, at string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tree(key)
	h := t.holder(id)
	h.detach()
	if h.addr != addr { // started again
		h.addr, h.doubts = addr, 0
		clear(h.gaveUp)
	}
	h.held, h.asked = false, now
	if failed != "" && !h.gaveUp[failed] {
		h.gaveUp[failed] = true
		if o := t.nodes[failed]; o != nil {
			o.doubts++
		}
	}
	if t.roots < policyRoots {
		t.roots++
		return "", ""
	}
	var best *policyHolder
	for _, o := range t.line {
		if !o.held && now.Sub(o.asked) > policyStuck {
			o.detach()
			continue
		}
		if o.addr == "" || o.serves >= policyFanout || o.doubts >= policyDoubts || h.gaveUp[o.id] || o.below(h) || silent(o.id) {
			continue
		}
		if best == nil || o.depth < best.depth || o.depth == best.depth && o.serves < best.serves {
			best = o
		}
	}
	if best == nil {
		return "", ""
	}
	best.serves++
	h.from, h.depth = best, best.depth+1
	return best.id, best.addr
}

// holds notes that a worker has the adapter.
func (f *policyForest) holds(key policyKey, id, addr string, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.tree(key).holder(id)
	h.detach()
	h.addr, h.held, h.asked = addr, true, now
}

// detach ends a fetch.
func (h *policyHolder) detach() {
	if h.from != nil {
		h.from.serves--
	}
	h.from, h.depth = nil, 0
}

// below says whether h is o or fetches, over whomever, from o: o must not wait
// for it.
func (h *policyHolder) below(o *policyHolder) bool {
	for ; h != nil; h = h.from {
		if h == o {
			return true
		}
	}
	return false
}
