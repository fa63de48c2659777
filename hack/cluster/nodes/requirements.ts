/** Checks whether this machine can run nodes. */
import { existsSync } from 'node:fs';

/** Returns the reason why this machine cannot run nodes. The result is undefined if it can. */
export function whyNoNodes(): string | undefined {
  if (process.platform !== 'linux') {
    return 'nodes of their own need Linux';
  }
  if (process.getuid?.() !== 0) {
    return 'nodes of their own need root';
  }
  if (existsSync('/sys/fs/cgroup/cgroup.controllers')) {
    return 'nodes of their own are set up for control groups of version 1, and this machine has version 2 alone';
  }
  return process.arch === 'x64' ? undefined : 'the guest of these tests is for x86';
}
