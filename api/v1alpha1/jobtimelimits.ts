/** Size of the times of jobs. The file imports no schema, because the console is made from it, too. */

/** Length of the time that one entry is about, in milliseconds. */
export const JOB_TIMES_MILLISECONDS = 300_000;
/** Largest number of namespaces whose times are kept. A document has at most 13 kB, and a ConfigMap has room for 1 MiB. */
export const JOB_TIMES_NAMESPACES = 64;
/** Number of entries of 24 hours. */
export const JOB_TIMES_LIMIT = 288;
