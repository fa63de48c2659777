/** Certificates of private authorities, from PEM files of the user. */
import { X509Certificate } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { messageOf } from '../base/errors.ts';
import { CommandError, EXIT } from './errors.ts';

/**
 * Returns the text of a PEM file with the certificates of an authority. `source` names the flag or setting with the path in messages.
 *
 * @throws CommandError when the file cannot be read, or when a certificate in it is damaged or missing.
 */
export async function readAuthority(file: string, source: string): Promise<string> {
  try {
    const text = await readFile(file, 'utf8');
    requireCertificates(text);
    return text;
  } catch (error) {
    throw new CommandError(`${source}: ${file}: ${messageOf(error)}`, EXIT.usage);
  }
}

function requireCertificates(text: string): void {
  const certificates = text.match(/-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----/g);
  if (certificates === null) {
    throw new Error('it must have a certificate in PEM, which begins with -----BEGIN CERTIFICATE-----');
  }
  for (const certificate of certificates) {
    void new X509Certificate(certificate);
  }
}
