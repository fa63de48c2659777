/**
 * Imported first of all, before V8's heap grows. Left to itself V8 trades memory for CPU time in a burst: it doubles the space for
 * new objects up to 3 × 32 MB, and lets the heap grow to a multiple of what lives in it. Here the first stays at the 1 MB (twice) that it
 * begins with and the second is collected when half as much again has come, which keeps the operator's peak memory at half, and
 * takes 50 MB off an agent's that pulls an image.
 * Set from within, so that it holds however a program is started: both are read anew at each growth.
 */
import { setFlagsFromString } from 'node:v8';

setFlagsFromString('--semi-space-growth-factor=1');
setFlagsFromString('--heap-growing-percent=50');
