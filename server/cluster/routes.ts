/** Route that returns facts about the cluster. */
import { clusterInfoSchema } from '../../api/http/cluster.ts';
import type { App } from '../http/app.ts';
import type { Services } from '../services.ts';

export function addClusterRoutes(app: App, { clusterInfo }: Pick<Services, 'clusterInfo'>): void {
  app.get(
    '/api/v1/cluster-info',
    {
      schema: {
        summary:
          'Get the address of the Kubernetes API and the settings for signing in. This request needs no token',
        tags: ['Cluster'],
        security: [],
        response: { 200: clusterInfoSchema },
      },
    },
    () => clusterInfo,
  );
}
