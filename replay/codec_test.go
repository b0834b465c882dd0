package replay

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fill gives every field of v another non-zero value, so that a field which a
// codec forgets is seen.
func fill(t *testing.T, v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(epoch.Add(time.Duration(*n))))
			return
		}
		for i := range v.NumField() {
			fill(t, v.Field(i), n)
		}
	case reflect.String:
		v.SetString(string(rune('a' + *n)))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n))
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Float64:
		v.SetFloat(float64(*n))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(t, v.Index(0), n)
		fill(t, v.Index(1), n)
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]float64{"loss": 1, "kl": 2}))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), n)
	default:
		t.Fatalf("no value for a %v", v.Type())
	}
}

func filled[T any](t *testing.T) T {
	var v T
	n := 0
	fill(t, reflect.ValueOf(&v).Elem(), &n)
	return v
}

// TestCodecsKeepEveryField: what the door's types gain, the codecs must carry.
func TestCodecsKeepEveryField(t *testing.T) {
	req := filled[LeaseRequest](t)
	req.Wait = 0 // the proposer's business, not the fold's
	for _, c := range []Command{
		filled[CreateRunCmd](t), filled[FinishRunCmd](t), filled[TakeTicketsCmd](t), filled[ReturnTicketCmd](t), filled[AppendItemsCmd](t),
		filled[TickCmd](t), AcquireLeaseCmd{epoch, req}, filled[ExtendLeaseCmd](t), filled[CommitStepCmd](t), filled[ReleaseLeaseCmd](t),
		filled[RequestEvalCmd](t), filled[SetTableCmd](t), filled[InsertGroupsCmd](t), filled[UpdatePrioritiesCmd](t), filled[RemoveGroupsCmd](t),
		filled[DeleteLogsCmd](t), filled[SetQuotaCmd](t),
	} {
		b, err := EncodeCommand(c)
		require.NoError(t, err)
		got, err := DecodeCommand(b)
		require.NoError(t, err)
		require.Equal(t, c, got)
	}
}

// TestPolicyKeepsEveryField: a policy as the fold stores it.
func TestPolicyKeepsEveryField(t *testing.T) {
	s := newSim(t, 1, 1, 0)
	s.finish(s.take(1)[0])
	require.NoError(t, s.commit(s.lease(1)))
	p, err := PolicyAt(s.kv, "r", 1)
	require.NoError(t, err)
	require.False(t, reflect.ValueOf(p).IsZero())
	for i := range reflect.TypeFor[Policy]().NumField() {
		require.False(t, reflect.ValueOf(p).Field(i).IsZero(), reflect.TypeFor[Policy]().Field(i).Name)
	}
}

// TestDecoderRefusesGarbage.
func TestDecoderRefusesGarbage(t *testing.T) {
	_, err := DecodeCommand([]byte{0xff, 0xff, 0xff})
	require.ErrorIs(t, err, ErrInvalid)
	_, err = EncodeCommand(AppendItemsCmd{epoch, []Item{{LogID: "\xff"}}})
	require.ErrorIs(t, err, ErrInvalid)
}
