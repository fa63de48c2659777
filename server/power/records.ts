/** Records of Servers, as the power API answers with them. */
import * as z from 'zod';
import { POWER_STATES, type Server } from '../../api/v1alpha1/server.ts';

const line = (description: string) => z.string().nullable().meta({ description });
const date = (description: string) => z.iso.datetime({ offset: true }).nullable().meta({ description });

const name = {
  id: z.string().meta({ description: 'Name of the Server object. It never changes.' }),
  name: z.string().meta({ description: 'Name for people.' }),
};
const facts = {
  type: line('Type of the server.'),
  location: line('Location of the server.'),
  status: line('Administrative status of the server. The power of the server does not change it.'),
  creation_date: date('Time from which the server is available.'),
  cancel_date: date('Time when the server was or will be given back.'),
};

/** One record of the list. A server with several addresses has one for each of them. */
export const listedServerSchema = z.object({
  ...name,
  ip: z.string().meta({ description: 'An IP address of the server.' }),
  ...facts,
});
export const serverRecordSchema = z.object({
  ...name,
  power: z.enum(POWER_STATES).meta({
    description:
      'Power of the server. Rebooting lasts until the server is on again. Error: the power cannot be read.',
  }),
  ...facts,
});

type ListedServer = z.infer<typeof listedServerSchema>;
type ServerRecord = z.infer<typeof serverRecordSchema>;

/** Returns the records of a Server in the list, one for each address. */
export function listedServers(server: Readonly<Server>, addresses: readonly string[]): ListedServer[] {
  return addresses.map((ip) => ({ ...nameOf(server), ip, ...factsOf(server) }));
}

/** Returns the record of a Server. Its power is Error as long as Berth has not read it. */
export function serverRecord(server: Readonly<Server>): ServerRecord {
  return { ...nameOf(server), power: server.status?.power ?? 'Error', ...factsOf(server) };
}

function nameOf({ metadata, spec }: Readonly<Server>): Pick<ServerRecord, 'id' | 'name'> {
  return { id: metadata.name, name: spec.displayName ?? metadata.name };
}

function factsOf({ spec }: Readonly<Server>): Omit<ServerRecord, 'id' | 'name' | 'power'> {
  const { type = null, location = null, status = null, creationDate = null, cancelDate = null } = spec;
  return { type, location, status, creation_date: creationDate, cancel_date: cancelDate };
}
