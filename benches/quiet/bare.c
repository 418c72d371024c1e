// Opens a SQLite file, sets what a connection needs, runs one query, and closes it: for each file, in turn.
// Prints the CPU time of one round in milliseconds.
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

static double cpu(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e3 + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e3;
}

int main(int count, char **arguments) {
  double before = cpu();
  for (int file = 1; file < count; file++) {
    sqlite3 *database;
    sqlite3_stmt *statement;
    if (sqlite3_open_v2(arguments[file], &database, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL)) abort();
    if (sqlite3_exec(database, "PRAGMA foreign_keys = ON; PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL",
                     NULL, NULL, NULL)) abort();
    if (sqlite3_prepare_v2(database, "SELECT id, name, anonymous FROM forms WHERE disabled = 0 ORDER BY id LIMIT 100",
                           -1, &statement, NULL)) abort();
    while (sqlite3_step(statement) == SQLITE_ROW) {}
    sqlite3_finalize(statement);
    if (sqlite3_close(database)) abort();
  }
  printf("%f\n", (cpu() - before) / (count - 1));
}
