// Package health tells whether the services in containers are well, by running
// a command in each now and then.
//
// It keeps the rules of Docker: a container is starting until a probe succeeds
// or as many in a row fail as its check allows; failures within the start
// period do not count until a first success. What it learns is in memory only:
// a probe writes nothing, and whoever starts anew probes at once.
package health
