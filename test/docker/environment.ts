/** Runs before each file of the project `docker`, and lets the file's clusters run in containers. */
import { inject } from 'vitest';

const docker = inject('docker');
if (typeof docker !== 'string') {
  Object.assign(process.env, docker);
}
