/** Settings for the certificate of a server. The configuration files of the operator and of the HTTP API contain these settings. */
import * as z from 'zod';

/** Paths of two PEM files: a certificate and its private key. Set both paths or none. */
export interface CertificateFiles {
  certificateFile?: string | undefined;
  keyFile?: string | undefined;
}

/**
 * Returns the settings for the certificate of a server as fields for a zod schema. {@link areFilesTogether} is a check that the caller must
 * also add to the schema. The parameter `dnsNames` is the default value of the field `dnsNames`.
 */
export function certificateFields(dnsNames: string[]) {
  return {
    /**
     * Paths of PEM files. The server reads the files again when they change. If no paths are set, the server creates its own certificate
     * and replaces it before it expires.
     */
    certificateFile: z.string().optional(),
    keyFile: z.string().optional(),
    /** DNS names in the certificate that the server creates. They have no effect if `certificateFile` and `keyFile` are set. */
    dnsNames: z.array(z.string()).default(dnsNames),
  };
}

export function areFilesTogether({ certificateFile, keyFile }: CertificateFiles): boolean {
  return (certificateFile === undefined) === (keyFile === undefined);
}

export const FILES_TOGETHER = { error: 'certificateFile and keyFile must be set together' };
