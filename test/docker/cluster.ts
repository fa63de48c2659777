/** A process of its own that starts the cluster named by its argument and stays until it is ended: what a test run is. */
import { startCluster } from '../../hack/cluster/index.ts';

await startCluster({ name: process.argv[2] ?? '' });
process.stdout.write('started\n');
