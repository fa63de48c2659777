/**
 * Imported first of all, before V8's heap grows. V8 doubles the space for new objects up to 3 × 32 MB while a burst lasts, to save CPU
 * time, and returns it minutes later; here it stays at the 1 MB (twice) that it begins with, and the operator's peak memory at half.
 * Set from within, so that it holds however the operator is started; the flags for sizes (--max-semi-space-size) are read only once,
 * before any of this runs, but the factor is read at each growth.
 */
import { setFlagsFromString } from 'node:v8';

setFlagsFromString('--semi-space-growth-factor=1');
