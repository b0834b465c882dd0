package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"sync"

	pb "github.com/skein-rl/skein/cluster/internal/clusterpb"
)

// removedEpoch marks a node that was taken out of the cluster. It is the newest
// possible news, so it spreads and stays.
const removedEpoch = math.MaxUint64

// bookEntry is where a replay node listens. Epoch grows with every start of
// that node, so that of two addresses the newer is known.
type bookEntry struct {
	Addr  string `json:"addr"`
	Epoch uint64 `json:"epoch"`
}

// book is the address book of the replay nodes, by id. Nodes exchange theirs
// when they announce themselves; the file lets a restarted process find the
// others again, even when all of them moved to new ports but one.
type book struct {
	path string // "" = memory only

	mu sync.Mutex
	m  map[string]bookEntry
}

func openBook(dir string) (*book, error) {
	b := &book{m: make(map[string]bookEntry)}
	if dir == "" {
		return b, nil
	}
	b.path = filepath.Join(dir, fileBook)
	raw, err := readFile(b.path)
	if err != nil || raw == nil {
		return b, err
	}
	if err := json.Unmarshal(raw, &b.m); err != nil {
		return nil, fmt.Errorf("cluster: address book %s: %w; remove it and give the address of a running node", b.path, err)
	}
	return b, nil
}

// merge takes what is newer and tells whether anything was. A failed write of
// the file is an error; the memory is right all the same.
func (b *book) merge(entries ...*pb.NodeAddr) (changed bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range entries {
		if !validID.MatchString(e.GetId()) || (e.GetAddr() == "") != (e.GetEpoch() == removedEpoch) {
			continue
		}
		if old, ok := b.m[e.Id]; !ok || e.Epoch > old.Epoch {
			b.m[e.Id] = bookEntry{e.Addr, e.Epoch}
			changed = true
		}
	}
	if !changed {
		return false, nil
	}
	return true, b.saveLocked()
}

// remove marks a node as taken out, for ever.
func (b *book) remove(id string) error {
	_, err := b.merge(&pb.NodeAddr{Id: id, Epoch: removedEpoch})
	return err
}

func (b *book) removed(id string) bool { return b.entry(id).Epoch == removedEpoch }

func (b *book) saveLocked() error {
	if b.path == "" {
		return nil
	}
	raw, err := json.MarshalIndent(b.m, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(b.path, append(raw, '\n'), 0o600)
}

func (b *book) addr(id string) (string, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.m[id]
	return e.Addr, ok && e.Addr != ""
}

func (b *book) entry(id string) bookEntry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.m[id]
}

// all lists the entries by id.
func (b *book) all() []*pb.NodeAddr {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]*pb.NodeAddr, 0, len(b.m))
	for _, id := range slices.Sorted(maps.Keys(b.m)) {
		out = append(out, &pb.NodeAddr{Id: id, Addr: b.m[id].Addr, Epoch: b.m[id].Epoch})
	}
	return out
}

// addrs lists the addresses of nodes that were not removed.
func (b *book) addrs() []string {
	var out []string
	for _, e := range b.all() {
		if e.Addr != "" {
			out = append(out, e.Addr)
		}
	}
	return out
}
