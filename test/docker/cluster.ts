/** A program that starts the cluster named by its argument and runs until it is ended, like a test run. */
import { startCluster } from '../../hack/cluster/index.ts';

await startCluster({ name: process.argv[2] ?? '' });
process.stdout.write('started\n');
