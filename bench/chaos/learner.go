package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/skein-rl/skein/replay"
)

// student is what one learner remembers of its table.
type student struct {
	run, table string
	max        uint32
	lease      uint64   // the last one that may be held still, 0 = none
	groups     []string // of it
}

// latest reads the newest version with the checkpoint it came from.
func (a *actor) latest(run string) (v uint64, checkpoint string, ok bool) {
	op := a.begin("latest", run, "")
	ctx, cancel := a.ctx()
	defer cancel()
	p, err := a.Latest(ctx, run)
	if err == nil && p.Version > 0 {
		var s replay.StepRecord
		if s, err = a.Step(ctx, run, p.Version); errors.Is(err, replay.ErrNotFound) {
			a.h.violation(fmt.Sprintf("version %d of run %s is published, and its step is not there", p.Version, run))
		}
		checkpoint = s.Checkpoint
	}
	op.Version, op.Checkpoint = p.Version, checkpoint
	a.h.end(op, err)
	return p.Version, checkpoint, err == nil
}

// learn is one round of a learner: a lease and what becomes of it.
func (a *actor) learn(s *student) {
	v, prev, ok := a.latest(s.run)
	if !ok {
		return
	}
	req := replay.LeaseRequest{Run: s.run, Table: s.table, Holder: a.id, Groups: 1 + a.rng.IntN(3), LearnerVersion: v,
		TTL: time.Duration(1500+a.rng.IntN(3000)) * time.Millisecond, Wait: 500 * time.Millisecond}
	if s.table != "" {
		req.AtLeast = 1
	}
	op := a.begin("lease", s.run, s.table)
	op.TTL, op.Max, op.Version, op.Ended, op.EndedOf = req.TTL, s.max, v, s.lease, s.groups
	ctx, cancel := a.ctx()
	l, err := a.Lease(ctx, req)
	cancel()
	if l != nil {
		op.Lease = l.ID
		for _, g := range l.Groups {
			op.Groups = append(op.Groups, a.held(s, v, g))
		}
	}
	a.h.end(op, err)
	if l == nil {
		if err == nil {
			s.lease, s.groups = 0, nil
		}
		return
	}
	s.lease, s.groups = l.ID, nil
	for _, g := range l.Groups {
		s.groups = append(s.groups, g.Group)
	}
	if a.rng.IntN(4) == 0 {
		a.check(l)
	}
	switch dice := a.rng.IntN(100); {
	case dice < 55:
		a.commit(s, l, v, prev)
	case dice < 70:
		for range 1 + a.rng.IntN(3) {
			time.Sleep(time.Duration(a.rng.Int64N(int64(req.TTL))) * 3 / 4)
			ttl := time.Duration(1500+a.rng.IntN(3000)) * time.Millisecond
			if !a.extend(s, l.ID, ttl) {
				return
			}
		}
		a.commit(s, l, v, prev)
	case dice < 80:
		a.release(s, l.ID, "")
	case dice < 83:
		a.release(s, l.ID, "chaos")
	case dice < 93: // it hangs until after its lease, and does not know
		time.Sleep(req.TTL + time.Duration(a.rng.IntN(1500))*time.Millisecond)
		a.commit(s, l, v, prev)
	}
	// else it dies, or begins anew
}

// held notes a leased group and what is wrong with it.
func (a *actor) held(s *student, v uint64, g replay.LeasedGroup) Held {
	h := Held{Group: g.Group, Sampled: g.TimesSampled}
	for _, it := range g.Items {
		h.Logs, h.Size = append(h.Logs, it.LogID), it.GroupSize
		if s.table != tablePrio && it.Group != g.Group {
			a.h.violation(fmt.Sprintf("lease of %s: log %s of group %s is in group %s", s.run, it.LogID, it.Group, g.Group))
		}
		if s.run == runFresh && it.Tokens > 0 && v-min(it.MinVersion, v) > 1 {
			a.h.violation(fmt.Sprintf("lease of %s at version %d: log %s was sampled with version %d, at most 1 older is allowed", s.run, v, it.LogID, it.MinVersion))
		}
	}
	if s.run == runTrain && len(g.Items) != 2 || s.run == runFresh && len(g.Items) < 2 || s.table == tableBuf && len(g.Items) != int(h.Size) {
		a.h.violation(fmt.Sprintf("lease of %s: group %s has %d members", s.run, g.Group, len(g.Items)))
	}
	if s.table != "" && g.TimesSampled >= s.max {
		a.h.violation(fmt.Sprintf("lease of %s: group %s was sampled %d times before, at most %d are allowed", s.run, g.Group, g.TimesSampled, s.max))
	}
	return h
}

// check reads a lease's logs.
func (a *actor) check(l *replay.Lease) {
	var ids []string
	for _, g := range l.Groups {
		for _, it := range g.Items {
			ids = append(ids, it.LogID)
		}
	}
	a.fetch(ids)
}

// fetch reads logs that are stored; what is missing or differs is a violation.
func (a *actor) fetch(ids []string) {
	op := a.begin("fetch", "", "")
	ctx, cancel := a.ctx()
	defer cancel()
	recs, err := a.Fetch(ctx, ids)
	if errors.Is(err, replay.ErrNotFound) {
		a.h.violation(fmt.Sprintf("stored logs are not there: %v", err))
	}
	for _, r := range recs {
		if f := a.h.facts(r.Item.LogID); f == nil || f.sum != xxhash.Sum64(r.Bytes) || f.digest != r.Item.Digest {
			a.h.violation(fmt.Sprintf("log %s has other bytes than were appended", r.Item.LogID))
		}
	}
	a.h.end(op, err)
}

func (h *history) facts(id string) *logFacts {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.tried[id]
}

func (a *actor) commit(s *student, l *replay.Lease, v uint64, prev string) {
	ctx, cancel := a.ctx()
	defer cancel()
	a.serial++
	blob, err := a.PutBlob(ctx, fmt.Appendf(nil, "checkpoint of %s by %s, %d", s.run, a.id, a.serial))
	if err != nil {
		return // it hangs, and its lease runs out
	}
	rec := replay.StepRecord{Run: s.run, Step: v + 1, Version: v + 1, Lease: l.ID, PrevCheckpoint: prev, Checkpoint: blob, Adapter: blob,
		Metrics: map[string]float64{"loss": 0.5}}
	op := a.begin("commit", s.run, s.table)
	op.Lease, op.Version, op.Prev, op.Checkpoint, op.Max = l.ID, v+1, prev, blob, s.max
	for _, g := range l.Groups {
		rec.Groups = append(rec.Groups, g.Group)
		op.Groups = append(op.Groups, Held{Group: g.Group})
		for _, it := range g.Items {
			rec.LogIDs = append(rec.LogIDs, it.LogID)
		}
	}
	err = a.Commit(ctx, rec)
	if errors.Is(err, replay.ErrInvalid) {
		a.h.violation(fmt.Sprintf("commit of version %d of %s is called invalid: %v", v+1, s.run, err))
	}
	a.h.end(op, err)
	if err == nil {
		s.lease, s.groups = 0, nil
	}
}

func (a *actor) extend(s *student, lease uint64, ttl time.Duration) bool {
	op := a.begin("extend", s.run, s.table)
	op.Lease, op.TTL = lease, ttl
	for _, g := range s.groups {
		op.Groups = append(op.Groups, Held{Group: g})
	}
	ctx, cancel := a.ctx()
	defer cancel()
	err := a.Extend(ctx, s.run, lease, ttl)
	a.h.end(op, err)
	return err == nil
}

func (a *actor) release(s *student, lease uint64, drop string) {
	op := a.begin("release", s.run, s.table)
	op.Lease, op.Drop, op.Max = lease, drop != "", s.max
	for _, g := range s.groups {
		op.Groups = append(op.Groups, Held{Group: g})
	}
	ctx, cancel := a.ctx()
	defer cancel()
	err := a.Release(ctx, s.run, lease, drop)
	a.h.end(op, err)
	if err == nil {
		s.lease, s.groups = 0, nil
	}
}

// follower reads a table from beginning to end again and again.
type follower struct {
	cursor string
	seen   map[string]bool
}

// read is one round of a reader.
func (a *actor) read(f *follower) {
	acked := a.h.ackedOf(runTable, tableAudit)
	if len(acked) > 0 && a.rng.IntN(3) > 0 {
		var ids []string
		for range 1 + a.rng.IntN(20) {
			ids = append(ids, acked[a.rng.IntN(len(acked))])
		}
		a.fetch(ids)
		return
	}
	op := a.begin("scan", runTable, tableAudit)
	ctx, cancel := a.ctx()
	defer cancel()
	for {
		items, next, err := a.Scan(ctx, runTable, tableAudit, f.cursor, 500)
		for _, it := range items {
			if f.seen[it.LogID] {
				a.h.violation(fmt.Sprintf("a scan that goes on from %q meets log %s again", f.cursor, it.LogID))
			}
			f.seen[it.LogID] = true
			f.cursor = it.LogID
		}
		if err != nil {
			a.h.end(op, err)
			return
		}
		if next == "" {
			break
		}
	}
	a.h.end(op, nil)
	for _, id := range acked { // before the scan began
		if !f.seen[id] {
			a.h.violation(fmt.Sprintf("log %s was stored before a scan began, and the scan does not show it", id))
		}
	}
}

// ackedOf lists the stored logs of a table.
func (h *history) ackedOf(run, table string) (out []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, f := range h.acked {
		if f.run == run && f.table == table {
			out = append(out, id)
		}
	}
	return out
}
