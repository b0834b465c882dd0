package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// bucket keeps objects in a bucket of a server that speaks S3, with requests
// signed by AWS Signature Version 4.
type bucket struct {
	c            *minio.Client
	name, prefix string // prefix ends with "/" unless it is empty
}

func openS3(u *url.URL, env func(string) string) (Target, error) {
	q := u.Query()
	var errs []error
	for k := range q {
		if k != "endpoint" && k != "region" && k != "insecure" {
			errs = append(errs, fmt.Errorf("%s is not known: use endpoint, region and insecure", k))
		}
	}
	if u.Host == "" {
		errs = append(errs, errors.New("it names no bucket: write s3://BUCKET/PREFIX"))
	}
	if u.User != nil {
		errs = append(errs, errors.New("keys do not belong in it: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"))
	}
	insecure := false
	if v := q.Get("insecure"); v != "" {
		var err error
		if insecure, err = strconv.ParseBool(v); err != nil {
			errs = append(errs, fmt.Errorf("insecure=%s: use true or false", v))
		}
	}
	id, secret := env("AWS_ACCESS_KEY_ID"), env("AWS_SECRET_ACCESS_KEY")
	if id == "" || secret == "" {
		errs = append(errs, errors.New("there are no keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"))
	}
	where := "s3://" + u.Host + u.Path
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("backup: target %s: %w", where, err)
	}
	endpoint := q.Get("endpoint")
	if endpoint == "" {
		endpoint = "s3.amazonaws.com"
	}
	region := q.Get("region")
	if region == "" {
		region = "us-east-1"
	}
	c, err := minio.New(endpoint, &minio.Options{
		Creds: credentials.NewStaticV4(id, secret, env("AWS_SESSION_TOKEN")), Secure: !insecure, Region: region, BucketLookup: minio.BucketLookupAuto,
	})
	if err != nil {
		return nil, fmt.Errorf("backup: target %s: endpoint %q: %w", where, endpoint, err)
	}
	prefix := strings.Trim(u.Path, "/")
	if prefix != "" {
		prefix += "/"
	}
	return &bucket{c, u.Host, prefix}, nil
}

func (b *bucket) String() string { return "s3://" + b.name + "/" + b.prefix }

// fail gives an error of the server our names.
func (b *bucket) fail(what, key string, err error) error {
	var r minio.ErrorResponse
	if errors.As(err, &r) && (r.Code == "NoSuchKey" || r.StatusCode == 404 && r.Code != "NoSuchBucket") {
		return fmt.Errorf("%w: %s in %s", ErrNotFound, key, b)
	}
	return fmt.Errorf("backup: %s %s in %s: %w", what, key, b, err)
}

func (b *bucket) Put(ctx context.Context, key string, data []byte) error {
	_, err := b.c.PutObject(ctx, b.name, b.prefix+key, bytes.NewReader(data), int64(len(data)),
		minio.PutObjectOptions{ContentType: "application/octet-stream", DisableMultipart: true})
	if err != nil {
		return b.fail("put", key, err)
	}
	return nil
}

func (b *bucket) Get(ctx context.Context, key string) ([]byte, error) {
	o, err := b.c.GetObject(ctx, b.name, b.prefix+key, minio.GetObjectOptions{})
	if err != nil {
		return nil, b.fail("get", key, err)
	}
	data, err := io.ReadAll(o)
	if err = errors.Join(err, o.Close()); err != nil {
		return nil, b.fail("get", key, err)
	}
	return data, nil
}

func (b *bucket) List(ctx context.Context, prefix string, fn func(Object) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the listing when fn has enough
	for o := range b.c.ListObjects(ctx, b.name, minio.ListObjectsOptions{Prefix: b.prefix + prefix, Recursive: true}) {
		if o.Err != nil {
			return b.fail("list", prefix, o.Err)
		}
		if err := fn(Object{strings.TrimPrefix(o.Key, b.prefix), o.Size, o.LastModified}); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (b *bucket) Delete(ctx context.Context, key string) error {
	if err := b.c.RemoveObject(ctx, b.name, b.prefix+key, minio.RemoveObjectOptions{}); err != nil {
		if err = b.fail("delete", key, err); !errors.Is(err, ErrNotFound) {
			return err
		}
	}
	return nil
}
