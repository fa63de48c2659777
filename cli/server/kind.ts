/** Defines the columns of tables with Servers, and the names of the kind in messages. */
import { conditionOf } from '../../api/http/conditions.ts';
import { SERVERS } from '../../api/v1alpha1/resources.ts';
import type { Server } from '../../api/v1alpha1/server.ts';
import type { Kind } from '../objects/kind.ts';
import { age } from '../text.ts';

export const SERVER_KIND: Kind<Server> = {
  type: SERVERS,
  noun: 'server',
  plural: 'servers',
  columns: [
    { header: 'NAME', value: ({ metadata }) => metadata.name },
    { header: 'POWER', value: ({ status }) => status?.power },
    { header: 'READY', value: (server) => conditionOf(server, 'Ready')?.status },
    { header: 'NODE', value: ({ spec }) => spec.nodeName },
    { header: 'IP', value: ({ spec }) => spec.addresses[0] },
    { header: 'TYPE', value: ({ spec }) => spec.type },
    { header: 'LOCATION', value: ({ spec }) => spec.location },
    { header: 'AGE', value: ({ metadata }) => age(metadata.creationTimestamp) },
    { header: 'ACTION', value: ({ status }) => status?.lastAction?.action, isWide: true },
    { header: 'RESULT', value: ({ status }) => status?.lastAction?.result, isWide: true },
    { header: 'BY', value: ({ status }) => status?.lastAction?.by, isWide: true },
    { header: 'MESSAGE', value: (server) => conditionOf(server, 'Ready')?.message, isWide: true },
  ],
  itemOf: (server) => {
    const { displayName, addresses, type, location, nodeName } = server.spec;
    const { power, lastAction } = server.status ?? {};
    const { name } = server.metadata;
    return { name, displayName, addresses, type, location, node: nodeName, power, lastAction };
  },
  isShared: false,
};
