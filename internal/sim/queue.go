package sim

import "time"

// event is something to do at a moment; equal moments in order of scheduling.
type event struct {
	at  time.Duration
	seq uint64
	do  func()
}

// queue is a binary heap of events.
type queue struct {
	heap []event
	seq  uint64
}

func (a event) before(b event) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

func (q *queue) push(at time.Duration, do func()) {
	q.seq++
	q.heap = append(q.heap, event{at, q.seq, do})
	for i := len(q.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !q.heap[i].before(q.heap[up]) {
			break
		}
		q.heap[i], q.heap[up] = q.heap[up], q.heap[i]
		i = up
	}
}

func (q *queue) pop() (event, bool) {
	if len(q.heap) == 0 {
		return event{}, false
	}
	first := q.heap[0]
	last := len(q.heap) - 1
	q.heap[0], q.heap[last] = q.heap[last], event{}
	q.heap = q.heap[:last]
	for i := 0; ; {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < last; c++ {
			if q.heap[c].before(q.heap[least]) {
				least = c
			}
		}
		if least == i {
			return first, true
		}
		q.heap[i], q.heap[least] = q.heap[least], q.heap[i]
		i = least
	}
}
