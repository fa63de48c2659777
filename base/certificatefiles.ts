/** Settings of the certificate of a server. Operator and HTTP API have them in their configuration files. */
import * as z from 'zod';

/** Paths of PEM files. Both are set, or none. */
export interface CertificateFiles {
  certificateFile?: string | undefined;
  keyFile?: string | undefined;
}

/** Returns the fields for a schema, which also needs {@link areFilesTogether}. `dnsNames` is their default. */
export function certificateFields(dnsNames: string[]) {
  return {
    /**
     * Paths of PEM files, which are read again when they change. Without them, the server creates its own certificate and replaces it before
     * its end.
     */
    certificateFile: z.string().optional(),
    keyFile: z.string().optional(),
    /** DNS names in a certificate that the server creates itself. */
    dnsNames: z.array(z.string()).default(dnsNames),
  };
}

export function areFilesTogether({ certificateFile, keyFile }: CertificateFiles): boolean {
  return (certificateFile === undefined) === (keyFile === undefined);
}

export const FILES_TOGETHER = { error: 'certificateFile and keyFile must be set together' };
