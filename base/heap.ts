/**
 * Imported first of all, before V8's heap grows. Left to itself V8 trades memory for CPU time in a burst: it doubles the space for
 * new objects up to 3 × 32 MB, and lets the heap grow to a multiple of what lives in it. Here the first stays at the 1 MB (twice) that it
 * begins with and the second is collected when half as much again has come, which keeps the operator's peak memory at half, and
 * takes 50 MB off an agent's that pulls an image.
 * New objects of so small a space are collected, and old ones marked, by the thread that made them: helpers cost half a second of CPU
 * time for 1,000 VMs, and save it none.
 * The HTTP client's parser, in WebAssembly, stays as it is first compiled: V8's optimizer keeps 5 MB for it, and saves nothing.
 * Set from within, so that it holds however a program is started: all are read anew when they are needed.
 */
import { setFlagsFromString } from 'node:v8';

setFlagsFromString('--semi-space-growth-factor=1');
setFlagsFromString('--heap-growing-percent=50');
setFlagsFromString('--no-parallel-scavenge');
setFlagsFromString('--no-concurrent-marking');
setFlagsFromString('--no-wasm-tier-up');
setFlagsFromString('--no-wasm-dynamic-tiering');
