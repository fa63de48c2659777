/** Runs before each file of the project `docker`: whatever clusters it starts run in containers. */
import { inject } from 'vitest';

const docker = inject('docker');
if (typeof docker !== 'string') {
  Object.assign(process.env, docker);
}
