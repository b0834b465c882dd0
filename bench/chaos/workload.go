package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	cl "github.com/skein-rl/skein/cluster"
	"github.com/skein-rl/skein/eventlog"
	"github.com/skein-rl/skein/replay"
	"github.com/skein-rl/skein/replay/table"
)

// load says how many clients do what. Each is a connection of its own and one
// goroutine.
type load struct {
	Workers  int           // take tickets and append their groups
	Learners int           // per table: lease, extend, commit, release, abandon
	Writers  int           // append single logs and groups of tables
	Readers  int           // fetch and scan
	Keeper   time.Duration // an operator compacts and verifies so often; 0 = never
	Think    time.Duration // at most between two operations of a client
	Patience time.Duration // of one operation; then its outcome is unknown
}

// The runs of an episode.
const (
	runTrain = "train"  // tickets and the table train
	runFresh = "fresh"  // the same with a staleness bound and attempts that end
	runTable = "tables" // configured tables
)

// Tables of runTable, and how often each gives a group.
const (
	tableAudit = "audit" // not configured: logs just lie there
	tableBuf   = "buf"
	tablePrio  = "prio"
	maxBuf     = 3
	maxPrio    = 1
)

func specs() []replay.RunSpec {
	spec := func(run string) replay.RunSpec {
		return replay.RunSpec{Run: run, Config: []byte("chaos: 1\n"), GroupSize: 2, GroupsPerStep: 2, MaxStaleness: 500,
			TicketTTL: 4 * time.Second, MaxAttempts: 1 << 16, BaseDigest: "blake3:00", KeepCheckpoints: 0}
	}
	fresh := spec(runFresh)
	fresh.GroupSize, fresh.MaxStaleness, fresh.MaxAttempts, fresh.TicketTTL = 3, 1, 3, 3*time.Second
	return []replay.RunSpec{spec(runTrain), fresh, spec(runTable)}
}

func tables() map[string]table.Config {
	buf, prio := table.Default(), table.Default()
	buf.Sampler.Kind, buf.MaxTimesSampled, buf.MaxItems = table.Uniform, maxBuf, 400
	prio.Sampler.Kind, prio.Sampler.Exponent, prio.MaxTimesSampled = table.Prioritized, 1, maxPrio
	return map[string]table.Config{tableBuf: buf, tablePrio: prio}
}

// workload is all clients of an episode.
type workload struct {
	c       *cluster
	h       *history
	load    load
	clients []*cl.Client
	ctx     context.Context
	stop    context.CancelFunc
	wg      sync.WaitGroup
}

// setUp creates the runs and tables.
func setUp(ctx context.Context, c *cl.Client) error {
	for _, s := range specs() {
		if err := c.CreateRun(ctx, s); err != nil {
			return err
		}
	}
	for name, cfg := range tables() {
		if _, err := c.SetTable(ctx, runTable, name, cfg, 0); err != nil {
			return err
		}
	}
	return nil
}

// startLoad connects the clients and lets them begin.
func startLoad(ctx context.Context, c *cluster, h *history, l load) (*workload, error) {
	w := &workload{c: c, h: h, load: l}
	w.ctx, w.stop = context.WithCancel(context.Background())
	client := func(id, role string, do func(*actor)) error {
		x, err := c.dial(ctx, id, role)
		if err != nil {
			return err
		}
		w.clients = append(w.clients, x)
		a := &actor{w: w, h: h, Client: x, id: id, rng: rand.New(rand.NewPCG(c.opt.Seed, xxhash.Sum64String(id)))}
		w.wg.Go(func() {
			for w.ctx.Err() == nil {
				do(a)
				a.think()
			}
		})
		return nil
	}
	var errs []error
	for i := range l.Workers {
		run := []string{runTrain, runTrain, runFresh}[i%3]
		errs = append(errs, client(fmt.Sprint("worker", i), cl.RoleWorker, func(a *actor) { a.work(run) }))
	}
	for i := range l.Learners {
		for _, t := range []struct {
			run, table string
			max        uint32
		}{{runTrain, "", 1}, {runTable, tableBuf, maxBuf}, {runTable, tablePrio, maxPrio}, {runFresh, "", 1}} {
			s := &student{run: t.run, table: t.table, max: t.max}
			errs = append(errs, client(fmt.Sprintf("learner%d-%s%s", i, t.run, t.table), cl.RoleLearner, func(a *actor) { a.learn(s) }))
		}
	}
	for i := range l.Writers {
		errs = append(errs, client(fmt.Sprint("writer", i), cl.RoleWorker, (*actor).write))
	}
	if l.Keeper > 0 {
		errs = append(errs, client("keeper", cl.RoleClient, func(a *actor) { a.keep(l.Keeper) }))
	}
	for i := range l.Readers {
		f := &follower{seen: make(map[string]bool)}
		errs = append(errs, client(fmt.Sprint("reader", i), cl.RoleClient, func(a *actor) { a.read(f) }))
	}
	return w, errors.Join(errs...)
}

// end lets every client finish what it does.
func (w *workload) end() {
	w.stop()
	w.wg.Wait()
	for _, c := range w.clients {
		_ = c.Close()
	}
}

// actor is one client.
type actor struct {
	*cl.Client
	w      *workload
	h      *history
	id     string
	rng    *rand.Rand
	serial int
	stored []string // audit logs of this client that are stored
}

func (a *actor) think() {
	if d := a.w.load.Think; d > 0 {
		time.Sleep(time.Duration(a.rng.Int64N(int64(d))))
	}
}

// ctx of one operation. An operation begun is finished: the end of the load does
// not cut it off.
func (a *actor) ctx() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), a.w.load.Patience)
}

func (a *actor) begin(kind, run, table string) *Op {
	return &Op{Kind: kind, Client: a.id, Run: run, Table: table, Call: a.h.now()}
}

// newLog makes a log as a rollout would.
func (a *actor) newLog(run, tbl, group string, member, size uint32, version uint64) replay.Record {
	a.serial++
	id := fmt.Sprintf("%s/%d/%s#%d", group, member, a.id, a.serial)
	b := eventlog.NewBuilder(eventlog.Meta{})
	b.SetID(id)
	n := 1 + a.rng.IntN(40)
	ids, lps := make([]int32, n), make([]float32, n)
	for i := range ids {
		ids[i], lps[i] = int32(a.rng.IntN(30000)), -a.rng.Float32()
	}
	span, err := b.AppendTokens(0, ids, lps, eventlog.Policy, version)
	if err != nil {
		panic(err)
	}
	text := make([]byte, 1+a.rng.IntN(1500))
	if a.rng.IntN(50) == 0 {
		text = make([]byte, 20_000+a.rng.IntN(60_000))
	}
	for i := range text {
		text[i] = byte('a' + a.rng.IntN(26))
	}
	if _, err := b.Append(eventlog.NewText(string(text)).In(0, span)); err != nil {
		panic(err)
	}
	l, err := b.Finish(eventlog.OK, "")
	if err != nil {
		panic(err)
	}
	data, err := eventlog.Encode(l)
	if err != nil {
		panic(err)
	}
	r := replay.Record{Bytes: data, Item: replay.Item{
		LogID: id, Run: run, Table: tbl, Group: group, Member: member, GroupSize: size, Source: "chaos", Task: group, Worker: a.id,
		Status: uint8(eventlog.OK), MinVersion: version, MaxVersion: version, Tokens: uint32(n), Reward: a.rng.Float64(), HasReward: true,
		Digest: l.Digest(), Size: uint32(len(data)), Created: time.Now(),
	}}
	a.h.trying(id, &logFacts{run: run, table: tbl, digest: r.Item.Digest, sum: xxhash.Sum64(data), group: group})
	return r
}

// append sends records and notes what became of each.
func (a *actor) append(run, tbl string, recs ...replay.Record) (stored []string) {
	op := a.begin("append", run, tbl)
	for _, r := range recs {
		op.Appends = append(op.Appends, Append{Group: r.Item.Group, Member: r.Item.Member, Size: r.Item.GroupSize, Log: r.Item.LogID})
	}
	ctx, cancel := a.ctx()
	defer cancel()
	res, err := a.Append(ctx, recs)
	if len(res) == len(recs) {
		for i, r := range res {
			op.Appends[i].Result = result(r)
			if op.Appends[i].Result == "accepted" {
				stored = append(stored, recs[i].Item.LogID)
				a.h.stored(recs[i].Item.LogID)
			}
			if r.Rejected != "" {
				a.h.violation(fmt.Sprintf("log %s was rejected: %s", recs[i].Item.LogID, r.Rejected))
			}
		}
		err = nil // each says for itself
	}
	a.h.end(op, err)
	return stored
}

func result(r replay.AppendResult) string {
	switch {
	case r.Duplicate:
		return "duplicate"
	case r.Busy != "":
		return "busy"
	case r.Rejected != "":
		return "rejected"
	}
	return "accepted"
}

// work is one round of a worker.
func (a *actor) work(run string) {
	op := a.begin("take", run, "")
	ctx, cancel := a.ctx()
	tks, err := a.TakeTickets(ctx, run, a.id, replay.AnyVersion, 1+a.rng.IntN(3), 500*time.Millisecond)
	cancel()
	for _, t := range tks {
		op.Groups = append(op.Groups, Held{Group: t.Group, Size: t.GroupSize, Attempt: t.Attempt})
	}
	op.TTL = 4 * time.Second
	if run == runFresh {
		op.TTL = 3 * time.Second
	}
	a.h.end(op, err)
	for _, t := range tks {
		switch dice := a.rng.IntN(100); {
		case dice < 6:
			op := a.begin("return", run, "")
			op.Groups = []Held{{Group: t.Group}}
			ctx, cancel := a.ctx()
			err := a.ReturnTicket(ctx, run, t.Group, a.id)
			cancel()
			a.h.end(op, err)
			continue
		case dice < 11:
			continue // a worker that died
		}
		var recs []replay.Record
		for m := range t.GroupSize {
			if slices.Contains(t.Done, m) && a.rng.IntN(4) > 0 {
				continue
			}
			recs = append(recs, a.newLog(run, "train", t.Group, m, t.GroupSize, t.Version))
			if a.rng.IntN(15) == 0 { // a twin comes too late
				recs = append(recs, a.newLog(run, "train", t.Group, m, t.GroupSize, t.Version))
			}
		}
		if a.rng.IntN(2) == 0 {
			a.append(run, "train", recs...)
			continue
		}
		for _, r := range recs {
			a.append(run, "train", r)
			if a.rng.IntN(30) == 0 {
				break // died in between
			}
		}
	}
}

// write is one round of a writer.
func (a *actor) write() {
	switch a.rng.IntN(4) {
	case 0, 1:
		var recs []replay.Record
		for range 1 + a.rng.IntN(8) {
			group := fmt.Sprintf("%s-%d", a.id, a.serial)
			recs = append(recs, a.newLog(runTable, tableAudit, group, 0, 1, 0))
		}
		a.stored = append(a.stored, a.append(runTable, tableAudit, recs...)...)
	case 2:
		group := fmt.Sprintf("b-%s-%d", a.id, a.serial)
		size := uint32(1 + a.rng.IntN(2))
		for m := range size {
			a.append(runTable, tableBuf, a.newLog(runTable, tableBuf, group, m, size, 0))
		}
	case 3:
		a.insert()
	}
}

// insert puts logs that are stored into a table.
func (a *actor) insert() {
	if len(a.stored) == 0 {
		return
	}
	n := min(1+a.rng.IntN(3), len(a.stored))
	logs := slices.Clone(a.stored[len(a.stored)-n:])
	a.stored = a.stored[:len(a.stored)-n]
	a.serial++
	group := fmt.Sprintf("p-%s-%d", a.id, a.serial)
	op := a.begin("insert", runTable, tablePrio)
	op.Appends = []Append{{Group: group, Size: uint32(n), Logs: logs}}
	ctx, cancel := a.ctx()
	defer cancel()
	res, err := a.InsertGroups(ctx, runTable, tablePrio, []replay.GroupInsert{{Group: group, LogIDs: logs, HasPriority: true, Priority: 0.1 + a.rng.Float64()}})
	if len(res) == 1 {
		op.Appends[0].Result, err = result(res[0]), nil
		if res[0].Rejected != "" {
			a.h.violation(fmt.Sprintf("group %s of stored logs was rejected: %s", group, res[0].Rejected))
		}
	}
	a.h.end(op, err)
}
