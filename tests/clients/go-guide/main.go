package main

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
)

// main reads a call from each line of standard input, and prints the result as a line of JSON.
func main() {
	limiter := &Limiter{Pool: &redis.Pool{Dial: func() (redis.Conn, error) {
		timeout := redis.DialReadTimeout(250 * time.Millisecond)
		return redis.Dial("tcp", "127.0.0.1:"+os.Args[1], redis.DialConnectTimeout(2*time.Second), timeout)
	}}}
	results := json.NewEncoder(os.Stdout)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var words []any
		for _, word := range strings.Fields(lines.Text()) {
			words = append(words, word)
		}
		allowed, reply, err := limiter.Take(words[0].(string), words[1].(string), words[2:]...)
		failure := ""
		if err != nil {
			failure = err.Error()
		}
		results.Encode(map[string]any{"allowed": allowed, "reply": reply, "error": failure})
	}
}
