package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// script builds a history of group g of the table buf, size 1, whose lease may
// be consumed twice.
type script struct{ ops []Op }

func (s *script) add(kind, client string, call, ret float64, o Outcome, f func(*Op)) *script {
	op := Op{Kind: kind, Client: client, Run: runTable, Table: tableBuf, Outcome: o, Max: 2,
		Call: time.Duration(call * float64(time.Second)), Return: time.Duration(ret * float64(time.Second))}
	f(&op)
	s.ops = append(s.ops, op)
	return s
}

func (s *script) stored(call, ret float64, o Outcome, result string) *script {
	return s.add("append", "w", call, ret, o, func(op *Op) { op.Appends = []Append{{Group: "g", Size: 1, Log: "l", Result: result}} })
}

func (s *script) leased(client string, call, ret float64, lease uint64, ttl float64, sampled uint32) *script {
	return s.add("lease", client, call, ret, OK, func(op *Op) {
		op.Lease, op.TTL, op.Groups = lease, time.Duration(ttl*float64(time.Second)), []Held{{Group: "g", Logs: []string{"l"}, Size: 1, Sampled: sampled}}
	})
}

func (s *script) of(kind, client string, call, ret float64, o Outcome, lease uint64) *script {
	return s.add(kind, client, call, ret, o, func(op *Op) {
		op.Lease, op.TTL, op.Groups = lease, 5*time.Second, []Held{{Group: "g"}}
	})
}

func TestModel(t *testing.T) {
	start := func() *script { return new(script).stored(0, 1, OK, "accepted") }
	for name, c := range map[string]struct {
		s  *script
		ok bool
	}{
		"leased and committed twice":    {start().leased("a", 2, 3, 1, 5, 0).of("commit", "a", 4, 5, OK, 1).leased("b", 6, 7, 2, 5, 1).of("commit", "b", 8, 9, OK, 2), true},
		"consumed too often":            {start().leased("a", 2, 3, 1, 5, 0).of("commit", "a", 4, 5, OK, 1).leased("b", 6, 7, 2, 5, 1).of("commit", "b", 8, 9, OK, 2).leased("b", 10, 11, 3, 5, 2), false},
		"held twice":                    {start().leased("a", 2, 3, 1, 5, 0).leased("b", 4, 5, 2, 5, 0), false},
		"over, then another's":          {start().leased("a", 2, 3, 1, 5, 0).leased("b", 8, 9, 2, 5, 0), true},
		"the same holder asks again":    {start().leased("a", 2, 3, 1, 5, 0).leased("a", 4, 5, 2, 5, 0), true},
		"ended before its time":         {start().leased("a", 2, 3, 1, 5, 0).leased("b", 6, 6.9, 2, 5, 0), false},
		"extended, so held twice":       {start().leased("a", 2, 3, 1, 5, 0).of("extend", "a", 4, 5, OK, 1).leased("b", 8, 8.5, 2, 5, 0), false},
		"maybe extended":                {start().leased("a", 2, 3, 1, 5, 0).of("extend", "a", 4, 5, Unknown, 1).leased("b", 8, 8.5, 2, 5, 0), true},
		"commit of a lease that is not": {start().leased("a", 2, 3, 1, 5, 0).leased("b", 8, 9, 2, 5, 0).of("commit", "a", 10, 11, OK, 1), false},
		"refused commit has no effect":  {start().leased("a", 2, 3, 1, 5, 0).of("commit", "a", 4, 5, Failed, 1).leased("b", 8, 9, 2, 5, 1), false},
		"unknown commit may have none":  {start().leased("a", 2, 3, 1, 5, 0).of("commit", "a", 4, 5, Unknown, 1).leased("b", 8, 9, 2, 5, 0), true},
		"unknown commit may come late":  {start().leased("a", 2, 3, 1, 5, 0).of("commit", "a", 4, 5, Unknown, 1).leased("b", 8, 9, 2, 5, 1), true},
		"live and refused":              {start().leased("a", 2, 3, 1, 5, 0).of("extend", "a", 4, 5, Failed, 1), false},
		"over and refused":              {start().leased("a", 2, 3, 1, 5, 0).of("extend", "a", 8, 9, Failed, 1), true},
		"released":                      {start().leased("a", 2, 3, 1, 5, 0).of("release", "a", 4, 5, OK, 1).leased("b", 5.1, 5.5, 2, 5, 0), true},
		"lease of what is not stored":   {new(script).leased("a", 2, 3, 1, 5, 0), false},
		"maybe stored":                  {new(script).stored(0, 1, Unknown, "").leased("a", 2, 3, 1, 5, 0), true},
		"stored later than it was seen": {new(script).leased("a", 2, 3, 1, 5, 0).stored(4, 5, OK, "accepted"), false},
		"accepted twice":                {start().stored(2, 3, OK, "accepted"), false},
		"duplicate of itself":           {new(script).stored(0, 1, OK, "duplicate").leased("a", 2, 3, 1, 5, 0), true},
	} {
		checked, open, bad := judge(c.s.ops, 10*time.Second)
		require.Equal(t, 1, checked)
		require.Zero(t, open)
		require.Equal(t, c.ok, len(bad) == 0, "%s: %v", name, bad)
	}
}

func TestModelOfTickets(t *testing.T) {
	take := func(client string, call, ret int, attempt uint32) Op {
		return Op{Kind: "take", Client: client, Run: runTrain, Outcome: OK, Call: time.Duration(call) * time.Second, Return: time.Duration(ret) * time.Second,
			TTL: 4 * time.Second, Groups: []Held{{Group: "g", Size: 2, Attempt: attempt}}}
	}
	for name, c := range map[string]struct {
		ops []Op
		ok  bool
	}{
		"one after the other":   {[]Op{take("a", 1, 2, 1), take("b", 6, 7, 2)}, true},
		"to two at once":        {[]Op{take("a", 1, 2, 1), take("b", 3, 4, 2)}, false},
		"an attempt goes back":  {[]Op{take("a", 1, 2, 2), take("b", 6, 7, 1)}, false},
		"of a group that is in": {[]Op{take("a", 1, 2, 1), {Kind: "append", Client: "a", Run: runTrain, Table: "train", Outcome: OK, Call: 3, Return: 4, Appends: []Append{{Group: "g", Size: 1, Log: "x", Result: "accepted"}}}, take("b", 6, 7, 2)}, false},
	} {
		_, _, bad := judge(c.ops, 10*time.Second)
		require.Equal(t, c.ok, len(bad) == 0, "%s: %v", name, bad)
	}
}

func TestPolicies(t *testing.T) {
	op := func(kind string, call, ret int, o Outcome, v uint64, ckpt, prev string) Op {
		return Op{Kind: kind, Client: fmt.Sprint("c", call), Run: "r", Outcome: o, Call: time.Duration(call), Return: time.Duration(ret),
			Version: v, Checkpoint: ckpt, Prev: prev}
	}
	for name, c := range map[string]struct {
		ops []Op
		ok  bool
	}{
		"in order":              {[]Op{op("latest", 1, 2, OK, 0, "", ""), op("commit", 3, 4, OK, 1, "a", ""), op("latest", 5, 6, OK, 1, "a", ""), op("commit", 7, 8, OK, 2, "b", "a")}, true},
		"stale read":            {[]Op{op("commit", 3, 4, OK, 1, "a", ""), op("latest", 5, 6, OK, 0, "", "")}, false},
		"concurrent read":       {[]Op{op("commit", 3, 6, OK, 1, "a", ""), op("latest", 5, 7, OK, 0, "", "")}, true},
		"read before the write": {[]Op{op("latest", 1, 2, OK, 1, "a", ""), op("commit", 3, 6, OK, 1, "a", "")}, false},
		"unknown, then read":    {[]Op{op("commit", 3, 4, Unknown, 1, "a", ""), op("latest", 5, 7, OK, 1, "a", "")}, true},
		"refused, then read":    {[]Op{op("commit", 3, 4, Failed, 1, "a", ""), op("latest", 5, 7, OK, 1, "a", "")}, false},
		"committed twice":       {[]Op{op("commit", 3, 4, OK, 1, "a", ""), op("commit", 5, 6, OK, 1, "b", "")}, false},
		"wrong parent":          {[]Op{op("commit", 3, 4, OK, 1, "a", ""), op("commit", 5, 6, OK, 2, "b", "x")}, false},
		"goes back":             {[]Op{op("commit", 3, 4, OK, 1, "a", ""), op("commit", 5, 6, OK, 2, "b", "a"), op("latest", 7, 8, OK, 1, "a", "")}, false},
	} {
		bad := judgePolicies(c.ops)
		require.Equal(t, c.ok, len(bad) == 0, "%s: %v", name, bad)
	}
}
