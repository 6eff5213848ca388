// redigo and redisc, as docs/clients.md shows them; tests/support/libraries.py describes the questions.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/mna/redisc"
)

func main() {
	mode, port := os.Args[1], os.Args[2]
	switch mode {
	case "server":
		oneServer(port)
	case "replicas":
		withReplicas(connect(port))
	default:
		inCluster(connect(port))
	}
}

func oneServer(port string) {
	// [one server]
	pool := &redis.Pool{Dial: func() (redis.Conn, error) { return redis.Dial("tcp", "127.0.0.1:"+port) }}
	conn := pool.Get()
	decision, err := redis.Int64s(conn.Do("RL.FIXED", "user:42", 100, "1m"))
	conn.Close()
	// [end]
	serve(func(verb string, words []interface{}) (interface{}, error) {
		if verb == "first" {
			reply := make([]interface{}, len(decision))
			for i, integer := range decision {
				reply[i] = integer
			}
			return reply, err
		}
		conn := pool.Get()
		defer conn.Close()
		return conn.Do(words[0].(string), words[1:]...)
	})
}

func connect(port string) *redisc.Cluster {
	// [cluster]
	cluster := &redisc.Cluster{
		StartupNodes: []string{"127.0.0.1:" + port},
		CreatePool: func(address string, options ...redis.DialOption) (*redis.Pool, error) {
			dial := func() (redis.Conn, error) { return redis.Dial("tcp", address, options...) }
			return &redis.Pool{Dial: dial}, nil
		},
	}
	cluster.Refresh()
	// [end]
	return cluster
}

func inCluster(cluster *redisc.Cluster) {
	serve(func(verb string, words []interface{}) (interface{}, error) {
		switch verb {
		case "one":
			return one(cluster, words[0].(string))
		case "several":
			return several(cluster, words[0].(string))
		case "pipeline":
			return pipeline(cluster, words)
		default:
			conn := cluster.Get()
			defer conn.Close()
			retrying, _ := redisc.RetryConn(conn, 3, 100*time.Millisecond)
			return retrying.Do(words[0].(string), words[1:]...)
		}
	})
}

func one(cluster *redisc.Cluster, key string) (interface{}, error) {
	// [cluster]

	conn := cluster.Get()
	defer conn.Close()
	retrying, _ := redisc.RetryConn(conn, 3, 100*time.Millisecond) // follows MOVED
	reply, err := retrying.Do("RL.FIXED", key, 100, "1m")
	// [end]
	return reply, err
}

func several(cluster *redisc.Cluster, tag string) (interface{}, error) {
	conn := cluster.Get()
	defer conn.Close()
	// [cluster]
	minute, day := "{"+tag+"}:minute", "{"+tag+"}:day"
	redisc.BindConn(conn, minute)
	reply, err := conn.Do("RL.MTAKE", 2, minute, day, "FIXED", 100, "1m", "FIXED", 5000, "1d")
	// [end]
	return reply, err
}

func pipeline(cluster *redisc.Cluster, keys []interface{}) (interface{}, error) {
	conn := cluster.Get()
	defer conn.Close()
	for _, key := range keys {
		conn.Send("RL.FIXED", key, 100, "1m")
	}
	replies, err := redis.Values(conn.Do(""))
	return replies, err
}

func withReplicas(cluster *redisc.Cluster) {
	serve(func(_ string, words []interface{}) (interface{}, error) {
		key := words[0].(string)
		// [replicas]
		conn := cluster.Get()
		defer conn.Close()
		redisc.ReadOnlyConn(conn)
		reply, err := conn.Do("RL.PEEK", key, "FIXED", 100, "1m")
		// [end]
		return reply, err
	})
}

func serve(answer func(verb string, words []interface{}) (interface{}, error)) {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := []interface{}{}
		for _, word := range strings.Fields(lines.Text()) {
			words = append(words, word)
		}
		reply, err := answer(words[0].(string), words[1:])
		integers := []string{}
		if err == nil {
			err = flatten(reply, &integers)
		}
		if err != nil {
			fmt.Println("!", strings.Join(strings.Fields(err.Error()), " "))
		} else {
			fmt.Println("=", strings.Join(integers, " "))
		}
	}
}

func flatten(reply interface{}, integers *[]string) error {
	switch value := reply.(type) {
	case []interface{}:
		for _, item := range value {
			if err := flatten(item, integers); err != nil {
				return err
			}
		}
	case redis.Error:
		return value
	default:
		*integers = append(*integers, fmt.Sprint(value))
	}
	return nil
}
