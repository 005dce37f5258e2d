/* Tells a story with the library that export.py writes:
 *
 *     ./stories tok512.bin [tokens]
 *
 * Token 1 begins a text. Pieces like <0x0A> are bytes, and one space behind the beginning is left out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "model.h"

#define VOCABULARY 512
#define LONGEST 64

static char pieces[VOCABULARY][LONGEST];

static int read_pieces(const char *path)
{
    FILE *file = fopen(path, "rb");
    int32_t longest, length;
    float score;
    if (!file || fread(&longest, 4, 1, file) != 1)
        return 0;
    for (int i = 0; i < VOCABULARY; i++) {
        if (fread(&score, 4, 1, file) != 1 || fread(&length, 4, 1, file) != 1)
            return 0;
        if (length >= LONGEST || fread(pieces[i], 1, length, file) != (size_t)length)
            return 0;
    }
    fclose(file);
    return 1;
}

static void say(int64_t token, int64_t before)
{
    const char *piece = pieces[token];
    unsigned byte;
    if (before == 1 && piece[0] == ' ')
        piece++;
    if (sscanf(piece, "<0x%02X>", &byte) == 1)
        putchar((int)byte);
    else
        fputs(piece, stdout);
}

int main(int argc, char **argv)
{
    int64_t token = 1, next;
    int count = argc > 2 ? atoi(argv[2]) : 200;
    if (argc < 2 || !read_pieces(argv[1])) {
        fprintf(stderr, "usage: stories tok512.bin [tokens]\n");
        return 2;
    }
    model *story = model_create();
    for (int i = 0; i < count; i++) {
        int status = model_run(story, &token, &next);
        if (status) {
            fprintf(stderr, "%s\n", model_message(status));
            return 1;
        }
        say(next, token);
        token = next;
    }
    model_destroy(story);
    return 0;
}
