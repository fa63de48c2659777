/** Size of the times of jobs. The file imports no schema, because the console is made from it, too. */

/** Length of the time that one entry is about, in milliseconds. */
export const JOB_TIMES_MILLISECONDS = 300_000;
/** Number of entries of 24 hours. */
export const JOB_TIMES_LIMIT = 288;
