// Go's net/http: HTTP/1.1 where answers come early, else HTTP/2. See client.py.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

type outcome struct {
	sync.Mutex
	Statuses map[int]int `json:"statuses"`
	Lost     []string    `json:"lost"`
}

func (o *outcome) ask(client *http.Client, method, url, token string, body []byte) {
	request, err := http.NewRequest(method, url, bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err == nil {
		_, err = io.Copy(io.Discard, response.Body)
		response.Body.Close()
	}
	o.Lock()
	defer o.Unlock()
	if err != nil {
		o.Lost = append(o.Lost, fmt.Sprintf("net/http %s %d: %v", url, len(body), err))
		return
	}
	if response.ProtoMajor == 2 == (os.Args[1] == "early") {
		o.Lost = append(o.Lost, "another protocol: "+response.Proto)
	}
	o.Statuses[response.StatusCode]++
}

func main() {
	mode, port, host, token := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	url := fmt.Sprintf("https://%s:%s/api/v1", host, port)
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, "127.0.0.1:"+port)
	}
	transport := &http.Transport{
		DialContext:       dial,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		ForceAttemptHTTP2: mode != "early",
	}
	client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
	outcome := &outcome{Statuses: map[int]int{}, Lost: []string{}}
	ask := func(turn int) {
		if turn%3 == 0 {
			outcome.ask(client, "POST", url+"/submission", token, append([]byte("{}"), bytes.Repeat([]byte(" "), turn%7*20_000)...))
		} else {
			outcome.ask(client, "GET", url+"/me", token, nil)
		}
	}
	each := func(workers int, work func()) {
		var all sync.WaitGroup
		for i := 0; i < workers; i++ {
			all.Add(1)
			go func() { work(); all.Done() }()
		}
		all.Wait()
	}
	switch mode {
	case "early":
		var cases [][5]any
		if err := json.NewDecoder(os.Stdin).Decode(&cases); err != nil {
			panic(err)
		}
		for _, c := range cases {
			for i := 0; i < int(c[4].(float64)); i++ {
				body := bytes.Repeat([]byte("x"), int(c[2].(float64)))
				outcome.ask(client, c[0].(string), url+c[1].(string), c[3].(string), body)
			}
		}
	case "end":
		for turn := 0; turn < 100; turn++ {
			ask(turn)
		}
		each(4, func() {
			for turn := 0; turn < 50; turn++ {
				ask(turn)
			}
		})
	case "steady":
		var ended atomic.Bool
		go func() { io.Copy(io.Discard, os.Stdin); ended.Store(true) }()
		each(3, func() {
			for turn := 0; !ended.Load(); turn++ {
				ask(turn)
			}
		})
	}
	json.NewEncoder(os.Stdout).Encode(outcome)
}
