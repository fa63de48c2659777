/** Facts about the cluster. */
import { clusterInfoSchema } from '../../api/http/cluster.ts';
import type { App } from '../http/app.ts';
import type { Services } from '../services.ts';

export function addClusterRoutes(app: App, { clusterInfo }: Pick<Services, 'clusterInfo'>): void {
  app.get(
    '/api/v1/cluster-info',
    {
      schema: {
        summary: 'Read where the Kubernetes API is, and how to sign in. It needs no token',
        tags: ['Cluster'],
        security: [],
        response: { 200: clusterInfoSchema },
      },
    },
    () => clusterInfo,
  );
}
