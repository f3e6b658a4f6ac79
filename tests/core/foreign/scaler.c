/* A loss scaler in C for `ampsim traces verify`: the plain machine. It answers null to rules with quirks.
   A line is JSON, but names are unique in it, so that looking for them is enough. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char line[1 << 20];

static const char *at(const char *name) { /* what stands after "name": or NULL */
  char key[64];
  snprintf(key, sizeof key, "\"%s\":", name);
  const char *found = strstr(line, key);
  return found ? found + strlen(key) : NULL;
}
static double real(const char *name, double otherwise) { /* "0x1.8p+1", or null */
  const char *text = at(name);
  return *text == '"' ? strtod(text + 1, NULL) : otherwise;
}
static int is(const char *name, const char *value) { return !strncmp(at(name), value, strlen(value)); }
static int resets(const char *event) {
  const char *list = at("hysteresis_reset"), *found = strstr(list, event);
  return found && found < strchr(list, ']');
}

static int single, flush;
static double rounded(double x) { return single ? (double)(float)x : x; }
static double result(double x) {
  x = rounded(x);
  return flush && fabs(x) < (single ? 0x1p-126 : 0x1p-1022) ? 0 : x;
}

static void answer(void) {
  const long interval = atol(at("growth_interval")), hysteresis = atol(at("hysteresis")), delay = atol(at("delay"));
  const int late = is("growth_test", "\">=\""), keeps = is("keeps_finite", "true");
  single = is("dtype", "\"float32\""), flush = is("flush_subnormals", "true");
  const double low = rounded(real("min_scale", 0)), high = rounded(real("max_scale", INFINITY));
  double up = real("growth_factor", 0), down = real("backoff_factor", 0);
  if (is("round_factors", "true")) up = rounded(up), down = rounded(down);
  double queue[64], *newest = queue; /* in force first */
  *newest = rounded(real("init_scale", 0));
  long clean = 0, overflows = 0;
  const char *at_once = at("synchronous");
  for (const char *flag = at("found_inf"); *flag++ != ']';) { /* a bracket or comma, then a digit */
    double scale = *newest;
    if (*flag == '1') {
      clean = 0;
      if (overflows + 1 < hysteresis) overflows++;
      else {
        if (is("backoff", "\"multiply\"")) scale = result(scale * down);
        else scale = is("backoff", "\"divide\"") ? result(scale / up) : result(scale * rounded(1 / up));
        if (at("min_scale")[0] != 'n' && scale < low) scale = low;
        if (resets("\"backoff\"")) overflows = 0;
      }
    } else {
      if (resets("\"clean\"")) overflows = 0;
      if (++clean == interval || (late && clean > interval)) {
        double grown = result(scale * up);
        if (grown > high) grown = high;
        if (isfinite(grown) || !keeps) scale = grown;
        clean = 0;
        if (resets("\"growth\"")) overflows = 0;
      }
    }
    *++newest = scale; /* comes into force when `delay` others wait behind the one before */
    const long depth = at_once && *(at_once += 1) == '1' ? 0 : delay;
    if (at_once) at_once++;
    const long drop = newest - queue - depth;
    if (drop > 0) memmove(queue, queue + drop, (depth + 1) * sizeof *queue), newest -= drop;
    printf("%s\"%a\"", flag[-1] == '[' ? "[" : ",", *queue);
    flag++;
  }
  puts("]");
}

int main(void) {
  while (fgets(line, sizeof line, stdin)) {
    if (is("quirks", "[]")) answer();
    else puts("null");
    fflush(stdout);
  }
  return 0;
}
