/** Settings for the certificate of a server. The configuration files of the operator and of the HTTP API contain them. */
import * as z from 'zod';

/** Paths of PEM files. Either both are set or none. */
export interface CertificateFiles {
  certificateFile?: string | undefined;
  keyFile?: string | undefined;
}

/**
 * Returns the fields for a schema. The schema must also check {@link areFilesTogether}. `dnsNames` is the default of the field with the
 * same name.
 */
export function certificateFields(dnsNames: string[]) {
  return {
    /**
     * Paths of PEM files. The server reads the files again when they change. If no paths are set, the server creates its own certificate
     * and replaces it before it expires.
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
