package cluster

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/skein-rl/skein/replay"
)

// fillValue gives every field a value of its own, so that a field that a
// conversion forgets is seen.
func fillValue(v reflect.Value, n *int) {
	*n++
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Unix(int64(*n), 7).UTC()))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprint("s", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n))
	case reflect.Float64:
		v.SetFloat(float64(*n) + 0.5)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillValue(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fillValue(v.Index(i), n)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 2 {
			k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fillValue(k, n)
			fillValue(e, n)
			v.SetMapIndex(k, e)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fillValue(v.Field(i), n)
		}
	default:
		panic(v.Kind())
	}
}

func roundTrip[T any, M proto.Message](t *testing.T, to func(T) M, from func(M) T) {
	t.Helper()
	var in, zero T
	n := 0
	fillValue(reflect.ValueOf(&in).Elem(), &n)
	for _, v := range []T{in, zero} {
		m := to(v)
		b, err := proto.Marshal(m)
		require.NoError(t, err)
		back := m.ProtoReflect().New().Interface().(M)
		require.NoError(t, proto.Unmarshal(b, back))
		require.Equal(t, v, from(back))
	}
}

func TestConversionsKeepEveryField(t *testing.T) {
	roundTrip(t, itemTo, itemFrom)
	roundTrip(t, recordTo, recordFrom)
	roundTrip(t, ticketTo, ticketFrom)
	roundTrip(t, resultTo, resultFrom)
	roundTrip(t, specTo, specFrom)
	roundTrip(t, leaseReqTo, leaseReqFrom)
	roundTrip(t, groupTo, groupFrom)
	roundTrip(t, func(l replay.Lease) proto.Message { return leaseTo(&l) }, nil2(leaseFrom))
	roundTrip(t, stepTo, stepFrom)
	roundTrip(t, policyTo, policyFrom)
	roundTrip(t, statusTo, statusFrom)
	roundTrip(t, evalReqTo, evalReqFrom)
	roundTrip(t, evalTo, evalFrom)
	roundTrip(t, infoTo, infoFrom)
	roundTrip(t, nodeStatusTo, nodeStatusFrom)
	roundTrip(t, clusterStatusTo, clusterStatusFrom)
	roundTrip(t, tableGroupTo, tableGroupFrom)
	roundTrip(t, insertTo, insertFrom)
	roundTrip(t, priorityTo, priorityFrom)
	roundTrip(t, tenantTo, tenantFrom)
}

func nil2[M proto.Message, T any](f func(M) *T) func(proto.Message) T {
	return func(m proto.Message) T { return *f(m.(M)) }
}

func TestErrorsCrossTheWire(t *testing.T) {
	for _, kind := range []error{replay.ErrStale, replay.ErrDiskFull, replay.ErrBusy, replay.ErrTimeout, replay.ErrNotFound, replay.ErrInvalid, replay.ErrUnavailable, ErrDenied} {
		err := fmt.Errorf("lease 7: %w", kind)
		back := fromStatus(toStatus(err), "n1")
		require.ErrorIs(t, back, kind)
		require.Equal(t, err.Error(), back.Error())
	}
	back := fromStatus(toStatus(fmt.Errorf("x: %w", &notLeaderError{node: "n1", id: "n2", addr: "a:1"})), "n1")
	var nl *notLeaderError
	require.ErrorAs(t, back, &nl)
	require.Equal(t, "a:1", nl.addr)
	require.ErrorIs(t, back, replay.ErrUnavailable)
}
