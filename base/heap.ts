/**
 * Settings that keep V8's heap small. A program imports this module before all others, because they must apply before the heap grows.
 * By default, V8 uses memory to save CPU time: in a burst it doubles the space for new objects up to 3 × 32 MB, and it lets the heap
 * grow to a multiple of the live objects. Here that space keeps its initial size, 1 MB twice, and the heap is collected when it has
 * grown by half. This halves the operator's peak memory, and saves 50 MB in an agent that pulls an image. Helper threads would cost
 * half a second of CPU time for 1,000 VMs, and V8's optimizer 5 MB for the HTTP client's parser (WebAssembly); neither saves time.
 * The flags are set at run time, so that they apply however the program is started. V8 reads a flag whenever it needs its value.
 */
import { setFlagsFromString } from 'node:v8';

setFlagsFromString('--semi-space-growth-factor=1');
setFlagsFromString('--heap-growing-percent=50');
setFlagsFromString('--no-parallel-scavenge');
setFlagsFromString('--no-concurrent-marking');
setFlagsFromString('--no-wasm-tier-up');
setFlagsFromString('--no-wasm-dynamic-tiering');
