/** The most that one machine may take of its host. */
import type { MachineLimits } from '../../machines/cgroup.ts';

const MEBIBYTE = 1024 ** 2;
/** QEMU's own code, its devices and screen, and what it caches of the disk; measured: docs/develop/performance.md. */
const PROCESS_BYTES = 256 * MEBIBYTE;
/** A processor's stacks and state. */
const PROCESSOR_BYTES = 16 * MEBIBYTE;
/** Page tables take 1/512 of the memory, maps of what was written to it 1/32768 each; the rest is margin. */
const MEMORY_SHARE = 1 / 64;
/** Emulation keeps what it has translated: 1 GiB at most (`tb-size` of QEMU). */
const TRANSLATION_BYTES = 1024 * MEBIBYTE;
/** Beside one thread for each processor: up to 64 that read and write the disk, those of screen, timers and copies. */
const THREADS = 128;

export function limitsOf(launched: { cpu: number; memoryBytes: number; accelerator: string }): MachineLimits {
  const { cpu, memoryBytes, accelerator } = launched;
  const emulation = accelerator === 'tcg' ? TRANSLATION_BYTES : 0;
  const overhead = PROCESS_BYTES + cpu * PROCESSOR_BYTES + Math.ceil(memoryBytes * MEMORY_SHARE) + emulation;
  return { memoryBytes: memoryBytes + overhead, processes: THREADS + cpu, cpu };
}
