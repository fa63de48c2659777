/** The registry credentials of a namespace, as the HTTP API shows and accepts them. */
import * as z from 'zod';
import { REGISTRY_USERNAME_LENGTH } from '../v1alpha1/registrycredentials.ts';
import { text } from '../v1alpha1/schema.ts';

/** Longest password in characters. Some registries give tokens of several thousand characters as passwords. */
const PASSWORD_LENGTH = 16_384;
const server = text('URL of the registry: scheme, host and optional port.', 512);

export const registryCredentialListSchema = z
  .object({
    items: z.array(
      z
        .object({ server: z.string(), username: z.string().optional(), allowInsecure: z.boolean() })
        .meta({ id: 'RegistryCredential' }),
    ),
  })
  .meta({ id: 'RegistryCredentialList', description: 'The registries of a namespace, without passwords.' });

export const registryCredentialRequestSchema = z.object({
  server,
  username: text('Name of the user.', REGISTRY_USERNAME_LENGTH),
  password: text('Password of the user.', PASSWORD_LENGTH),
  allowInsecure: z.boolean().optional().meta({
    description: 'Whether Berth may use the registry without TLS, or without checking its certificate.',
  }),
  replace: z.boolean().optional().meta({ description: 'Whether to replace the credential of the registry.' }),
});
export type RegistryCredentialRequest = z.infer<typeof registryCredentialRequestSchema>;

export const registryServerSchema = z.object({ server });
